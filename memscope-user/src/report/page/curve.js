// Memory over time: components stacked at the fullest moment of each pixel.
const PAD = { l: 74, r: 14, t: 26, b: 22 };
let drag = null, shown = {};
function niceStep(most, marks) {
  const raw = most / marks, power = 2 ** Math.floor(Math.log2(raw || 1));
  return [1, 2, 4].map(m => m * power).find(s => s >= raw) || power;
}
function timeStep(range, marks) {
  const raw = range * D.unit_ns / marks, power = 10 ** Math.floor(Math.log10(raw || 1));
  return ([1, 2, 5, 10].map(m => m * power).find(s => s >= raw) || power) / D.unit_ns;
}
const binAt = (l, t) => Math.max(0, Math.min(l.bins - 1, Math.floor((t - l.bins_start) / l.bin_width)));
function reservedAt(l, t) {
  return C[`${state.view}.${state.layer}.reserved`][binAt(l, t)] || segmentsAt(t).reduce((a, s) => a + s[1], 0);
}
function curve() {
  const l = layer(), [g, w, h] = canvas("curve", 290), high = col("high"), res = col("reserved"), parts = col("parts"), n = l.bins;
  const X = t => PAD.l + (t - state.from) / (state.to - state.from) * (w - PAD.l - PAD.r);
  const T = x => state.from + (x - PAD.l) / (w - PAD.l - PAD.r) * (state.to - state.from);
  const columns = [];
  let most = 1;
  for (let x = PAD.l; x < w - PAD.r; x++) {
    const a = T(x), b = T(x + 1);
    if (b < view().start || a > view().end) { columns.push(-1); continue; }
    let at = binAt(l, a);
    for (let i = at + 1, last = Math.max(at + 1, Math.ceil((b - l.bins_start) / l.bin_width)); i < last && i < n; i++) if (high[i] > high[at]) at = i;
    columns.push(at);
    most = Math.max(most, high[at], res[at]);
  }
  const top = most * 1.08, Y = v => h - PAD.b - v / top * (h - PAD.t - PAD.b);
  // Steps as bands, then the grid.
  g.fillStyle = inks.band;
  view().steps.forEach(([a, b], i) => { if (i % 2 === 0 && b > state.from && a < state.to) g.fillRect(Math.max(PAD.l, X(a)), PAD.t, Math.min(w - PAD.r, X(b)) - Math.max(PAD.l, X(a)), h - PAD.t - PAD.b); });
  g.textAlign = "right";
  for (let v = 0, s = niceStep(top, 4); v <= top; v += s) { g.fillStyle = inks.line; g.fillRect(PAD.l, Math.round(Y(v)), w - PAD.l - PAD.r, 1); g.fillStyle = inks.soft; g.fillText(bytes(v), PAD.l - 8, Y(v)); }
  g.textAlign = "center";
  for (let s = timeStep(state.to - state.from, Math.max(2, w / 150)), t = Math.ceil(state.from / s) * s; t <= state.to; t += s) if (X(t) > PAD.l + 10 && X(t) < w - 30) g.fillText(span(t).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " "), X(t), h - 9);
  const base = new Float64Array(columns.length);
  const area = (value, colour, alpha = 1) => {
    g.beginPath();
    columns.forEach((at, k) => { const y = Y(base[k] + (at < 0 ? 0 : value(at))), x = PAD.l + k; k ? g.lineTo(x, y) : g.moveTo(x, y); g.lineTo(x + 1, y); });
    for (let k = columns.length - 1; k >= 0; k--) { g.lineTo(PAD.l + k + 1, Y(base[k])); g.lineTo(PAD.l + k, Y(base[k])); }
    g.closePath(); g.globalAlpha = alpha; g.fillStyle = colour; g.fill(); g.globalAlpha = 1;
  };
  area(at => Math.max(res[at], 0), inks.free);
  for (const c of [...l.parts.keys()].slice(1).concat(0)) {
    area(at => parts[c * n + at], partColour(l, c));
    columns.forEach((at, k) => { if (at >= 0) base[k] += parts[c * n + at]; });
  }
  if (res.some(v => v > 0)) { g.beginPath(); columns.forEach((at, k) => { if (at < 0) return; const y = Y(res[at]); g.lineTo(PAD.l + k, y); g.lineTo(PAD.l + k + 1, y); }); g.strokeStyle = inks.soft; g.lineWidth = 1; g.stroke(); }
  flags(l, g, w, h, X);
  shown.curve = { T, say: t => sayCurve(l, t) };
  $("curve").setAttribute("aria-label", `${W.overTime}, ${l.name}: ${W.peakFlag(bytes(peakOf(l).bytes))}, ${span(peakOf(l).t)}; ${endLabel()} ${bytes(endOf(l).bytes)}`);
}
function flags(l, g, w, h, X) {
  let last = -99;
  g.fillStyle = inks.soft; g.textAlign = "left";
  view().steps.forEach(([a], i) => { const x = X(a); if (x >= PAD.l && x < w - PAD.r - 12 && x - last > 34) { g.fillText(last < 0 ? W.stepNo(i + 1) : String(i + 1), x + 3, PAD.t + 8); last = x + (last < 0 ? 22 : 0); } });
  const flag = (t, text, colour, y) => {
    const x = X(t);
    if (x < PAD.l - 1 || x > w - PAD.r + 1) return;
    g.strokeStyle = g.fillStyle = colour; g.lineWidth = 1.5;
    g.beginPath(); g.moveTo(x, y); g.lineTo(x, h - PAD.b); g.stroke();
    const right = x > w - 200; g.textAlign = right ? "right" : "left"; g.font = "600 12px system-ui, sans-serif"; g.fillText(text, x + (right ? -5 : 5), y + 5); g.font = "12px system-ui, sans-serif";
  };
  for (const [t, size] of view().failed.slice(-20)) flag(t, W.oomFlag(bytes(size)), inks.found, 16 - 15);
  flag(peakOf(l).t, W.peakFlag(bytes(peakOf(l).bytes)), inks.accent, view().failed.length ? 14 : 4);
  const x = X(state.cursor);
  if (x >= PAD.l && x <= w - PAD.r) { g.setLineDash([3, 3]); g.strokeStyle = inks.ink; g.lineWidth = 1; g.beginPath(); g.moveTo(x, PAD.t); g.lineTo(x, h - PAD.b); g.stroke(); g.setLineDash([]); }
  if (drag) { g.fillStyle = inks.mark; g.fillRect(Math.min(...drag), PAD.t, Math.abs(drag[1] - drag[0]), h - PAD.t - PAD.b); }
}
const at = t => span(t) + (stepAt(t) ? ` · ${W.stepNo(stepAt(t))}` : "");
function sayCurve(l, t) {
  const i = binAt(l, t), parts = col("parts"), marks = view().marks.filter(m => Math.abs(m[0] - t) < (state.to - state.from) / 200).slice(0, 3).map(m => "▸ " + m[1]);
  const each = l.parts.map((_, c) => [parts[c * l.bins + i], partName(l, c)]).filter(p => p[0]).sort((a, b) => b[0] - a[0]);
  return [at(t), `${W.inUse} ${bytes(col("high")[i])}`, `${W.reserved} ${bytes(reservedAt(l, t))}`, ...each.map(p => `   ${bytes(p[0])}  ${p[1]}`), ...marks].join("\n");
}
function curveTable() {
  const l = layer(), parts = col("parts"), high = col("high"), rows = [];
  for (let k = 0; k < 24; k++) {
    const a = binAt(l, state.from + (state.to - state.from) * k / 24), b = Math.max(a + 1, binAt(l, state.from + (state.to - state.from) * (k + 1) / 24));
    let i = a;
    for (let j = a; j < b; j++) if (high[j] > high[i]) i = j;
    const top = l.parts.map((_, c) => [parts[c * l.bins + i], partName(l, c)]).filter(p => p[0]).sort((x, y) => y[0] - x[0]).slice(0, 3);
    rows.push([[at(l.bins_start + i * l.bin_width)], [bytes(high[i]), "n"], [bytes(col("reserved")[i]), "n"], [top.map(p => `${p[1]} ${bytes(p[0])}`).join(", "), "w"]]);
  }
  table("curveTable", [[W.time], [W.used, "n"], [W.reservedCol, "n"], [W.owner]], rows);
}
function legend() {
  const l = layer(), parts = col("parts"), there = l.parts.map((_, c) => { for (let i = 0; i < l.bins; i++) if (parts[c * l.bins + i]) return true; return false; });
  const items = [...l.parts.keys()].slice(1).concat(0).filter(c => there[c]).map(c => el("span", "", null, dot(partColour(l, c)), document.createTextNode(clean(partName(l, c)))));
  if (col("reserved").some(v => v > 0)) items.push(el("span", "", null, dot(inks.free), document.createTextNode(W.cached)));
  $("legend").replaceChildren(...items);
}
