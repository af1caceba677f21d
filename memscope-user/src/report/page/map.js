// Blocks as address over time, and the segments of a pool at a moment.
const MAP_HEIGHT = 380;
let pan = null;
const segmentsOf = () => view().segments.filter(s => s[5] === state.layer);
const segmentsAt = t => segmentsOf().filter(s => s[2] <= t && (s[3] > t || s[4]));
function heightOf() {
  const y = col("b", "y"), size = col("b", "size");
  let most = 1;
  for (let i = 0; i < y.length; i++) if (y[i]) most = Math.max(most, y[i] - 1 + size[i]);
  return most;
}
const heights = {};
// The picture without the cursor, which moves more often than all else.
let drawn = { key: "" };
function map() {
  const l = layer(), [g, w, h] = canvas("map", MAP_HEIGHT), t0 = col("b", "t0"), life = col("b", "life"), y = col("b", "y"), size = col("b", "size");
  const H = heights[[state.view, state.layer]] ??= heightOf(), X = t => (t - state.from) / (state.to - state.from) * w, held = col("b", "held");
  const key = [state.view, state.layer, state.from, state.to, g.canvas.width, document.documentElement.dataset.theme].join();
  if (drawn.key === key) g.drawImage(drawn.picture, 0, 0, w, h);
  else {
    blocks(l, g, w, h, X, v => v / H * h);
    const picture = el("canvas");
    picture.width = g.canvas.width; picture.height = g.canvas.height;
    picture.getContext("2d").drawImage(g.canvas, 0, 0);
    drawn = { key, picture };
  }
  g.fillStyle = inks.found;
  for (const [t] of view().failed) g.fillRect(X(t), 0, 1.5, h);
  g.fillStyle = inks.ink; g.fillRect(X(state.cursor), 0, 1, h);
  shown.map = {
    T: x => state.from + x / w * (state.to - state.from),
    hit(e) {
      const t = this.T(localX("map", e)), v = localY("map", e) / h * H, slack = 2 * H / h;
      let best = -1, far = slack;
      for (let i = 0; i < t0.length && t0[i] <= t; i++) {
        if (!y[i] || (!held[i] && t0[i] + life[i] < t)) continue;
        const from = y[i] - 1, off = v < from ? from - v : v > from + size[i] ? v - from - size[i] : 0;
        if (off < far || (off === 0 && far === 0)) { best = i; far = off; }
      }
      return best;
    },
  };
  const n = count(l.shown), all = count(l.allocations);
  $("mapHint").textContent = (l.exact ? W.mapAll(n) : W.mapSome(n, all)) + W.mapMore;
  $("map").setAttribute("aria-label", `${W.blocks}: ${l.exact ? W.mapAll(n) : W.mapSome(n, all)}`);
}
function blocks(l, g, w, h, X, Y) {
  const t0 = col("b", "t0"), life = col("b", "life"), y = col("b", "y"), size = col("b", "size"), part = col("b", "part"), held = col("b", "held");
  g.fillStyle = inks.bg; g.fillRect(0, 0, w, h);
  g.fillStyle = inks.free;
  // Segments lie where their blocks do: the packed place of a block less its place in the segment.
  for (const s of segmentsOf()) { const base = s[6] ??= baseOf(s); if (base != null) g.fillRect(X(s[2]), Y(base), Math.max(.5, X(s[4] ? view().end : s[3]) - X(s[2])), Math.max(.5, Y(s[1]) - .5)); }
  const colours = l.parts.map((_, i) => partColour(l, i)), order = [...colours.keys()].map(() => []);
  for (let i = 0; i < t0.length; i++) {
    const end = held[i] ? view().end : t0[i] + life[i];
    if (y[i] && end >= state.from && t0[i] <= state.to) order[part[i]].push(i);
  }
  // Blocks of less than a pixel share it: it is painted once for each colour.
  const wide = Math.ceil(w) + 4, pixels = new Uint16Array(wide * (h + 1)), from = new Float32Array(h + 1), to = new Float32Array(h + 1);
  order.forEach((list, c) => {
    g.fillStyle = colours[c];
    from.fill(0); to.fill(-1);
    for (const i of list) {
      const x = Math.max(-2, X(t0[i])), bw = Math.min(w + 2, X(held[i] ? view().end : t0[i] + life[i])) - x, top = Y(y[i] - 1), bh = Y(size[i]);
      if (bh > 1) { g.fillRect(x, top, bw > 4 ? bw - .6 : Math.max(.7, bw), bh > 3 ? bh - .7 : bh); continue; }
      const row = Math.min(h, Math.floor(top));
      if (bw > 1) {
        if (x >= from[row] && x + bw <= to[row]) continue;
        from[row] = x; to[row] = x + bw;
        g.fillRect(x, row, bw, 1);
      } else {
        const pixel = row * wide + Math.floor(x) + 2;
        if (pixels[pixel] === c + 1) continue;
        pixels[pixel] = c + 1;
        g.fillRect(Math.floor(x), row, 1, 1);
      }
    }
  });
}
function baseOf(s) {
  const addr = col("b", "addr"), y = col("b", "y");
  for (let i = 0; i < addr.length; i++) if (y[i] && addr[i] >= s[0] && addr[i] < s[0] + s[1]) return y[i] - 1 - (addr[i] - s[0]);
  return null;
}
const lifeText = i => col("b", "held")[i] ? W.restOfRun : span(col("b", "life")[i]);
function sayBlock(i) {
  const f = placeOf(col("b", "python")[i], col("b", "native")[i]), t = col("b", "t0")[i];
  return [`${bytes(col("b", "size")[i])}  ${partName(layer(), col("b", "part")[i])}`, W.from(span(t), view().steps.length ? stepAt(t) : 0, lifeText(i)), f ? shortFrame(f) : W.noStack].join("\n");
}
function pin(i) {
  if (i == null || i < 0) return $("block").replaceChildren();
  const title = W.block(count(col("b", "id")[i]), layer().pool, bytes(col("b", "size")[i]), "0x" + col("b", "addr")[i].toString(16), partName(layer(), col("b", "part")[i]));
  $("block").replaceChildren(el("b", "", title), el("div", "", sayBlock(i).split("\n")[1]), el("div", "cols", null, stackBlock(col("b", "python")[i]), stackBlock(col("b", "native")[i])));
}
function blockTable() {
  const size = col("b", "size"), top = [...size.keys()].sort((a, b) => size[b] - size[a] || a - b).slice(0, 50);
  table("blockTable", [[W.size, "n"], [W.owner], [W.time], [W.life], [W.address, "n"], [W.place]], top.map(i => {
    const f = placeOf(col("b", "python")[i], col("b", "native")[i]);
    return [[bytes(size[i]), "n"], [partName(layer(), col("b", "part")[i])], [at(col("b", "t0")[i])], [col("b", "held")[i] ? W.held : span(col("b", "life")[i])], ["0x" + col("b", "addr")[i].toString(16), "n"], [f ? shortFrame(f) : W.noStack, "w"]];
  }));
}

const SEG_ROW = 20, MOST_SEGS = 48;
function liveAt(t) {
  const t0 = col("b", "t0"), life = col("b", "life"), held = col("b", "held"), live = [];
  for (let i = 0; i < t0.length && t0[i] <= t; i++) if (held[i] || t0[i] + life[i] > t) live.push(i);
  return live;
}
function segmentRows(t) {
  const addr = col("b", "addr"), size = col("b", "size"), list = segmentsAt(t).sort((a, b) => a[0] - b[0]), rows = list.map(s => ({ s, blocks: [], used: 0, largest: 0 }));
  for (const i of liveAt(t)) {
    let a = 0, b = list.length;
    while (a < b) { const m = (a + b) >> 1; if (list[m][0] <= addr[i]) a = m + 1; else b = m; }
    const row = rows[a - 1];
    if (row && addr[i] < row.s[0] + row.s[1]) { row.blocks.push(i); row.used += size[i]; }
  }
  for (const r of rows) {
    let on = r.s[0];
    for (const i of r.blocks.sort((a, b) => addr[a] - addr[b])) { r.largest = Math.max(r.largest, addr[i] - on); on = Math.max(on, addr[i] + size[i]); }
    r.largest = Math.max(r.largest, r.s[0] + r.s[1] - on);
  }
  return rows.sort((a, b) => (b.s[1] - b.used) - (a.s[1] - a.used) || a.s[0] - b.s[0]);
}
function segs() {
  const l = layer(), t = state.cursor, rows = segmentRows(t), addr = col("b", "addr"), size = col("b", "size"), part = col("b", "part");
  $("segmentsPanel").hidden = l.base;
  const listed = rows.slice(0, MOST_SEGS), big = Math.max(1, ...listed.map(r => r.s[1])), [g, w] = canvas("segments", listed.length * SEG_ROW + 2), L = Math.min(200, Math.max(76, w * .3)), R = 48, boxes = [];
  listed.forEach((r, k) => {
    const wide = Math.max(2, r.s[1] / big * (w - L - R)), y = k * SEG_ROW + 2;
    g.fillStyle = inks.soft; g.textAlign = "right"; g.fillText(L < 190 ? bytes(r.s[1]) : W.segFree(bytes(r.s[1]), bytes(r.s[1] - r.used)), L - 10, y + 8);
    g.fillStyle = inks.free; g.fillRect(L, y, wide, 15);
    for (const i of r.blocks) { const x = L + (addr[i] - r.s[0]) / r.s[1] * wide, bw = Math.max(.8, size[i] / r.s[1] * wide); g.fillStyle = partColour(l, part[i]); g.fillRect(x, y, bw > 3 ? bw - .7 : bw, 15); boxes.push([x, bw, y, i]); }
    g.textAlign = "left"; g.fillStyle = inks.soft; g.fillText(percent(r.used, r.s[1]), L + wide + 6, y + 8);
  });
  const total = rows.reduce((a, r) => a + r.s[1], 0), used = rows.reduce((a, r) => a + r.used, 0), largest = rows.reduce((a, r) => Math.max(a, r.largest), 0);
  const text = rows.length ? W.segs(count(rows.length), bytes(total), bytes(used), bytes(total - used), bytes(largest)) + (rows.length > MOST_SEGS ? W.segsMore(count(rows.length - MOST_SEGS)) : "") + (l.exact ? "" : W.exactAt) : W.segsNone;
  $("segHint").textContent = text; $("segments").setAttribute("aria-label", `${W.segments}: ${text}`);
  $("when").textContent = at(t);
  $("slider").value = 1000 * (t - view().start) / (view().end - view().start || 1);
  $("slider").setAttribute("aria-valuetext", at(t));
  table("segTable", [[W.address, "n"], [W.size, "n"], [W.used, "n"], [W.free, "n"], [W.largestCol, "n"], [W.count, "n"]], listed.map(r => [["0x" + r.s[0].toString(16), "n"], [bytes(r.s[1]), "n"], [bytes(r.used), "n"], [bytes(r.s[1] - r.used), "n"], [bytes(r.largest), "n"], [count(r.blocks.length), "n"]]));
  shown.segs = e => { const x = localX("segments", e), y = localY("segments", e), b = boxes.find(b => y >= b[2] && y < b[2] + 16 && x >= b[0] - 1 && x <= b[0] + b[1] + 1); return b ? b[3] : -1; };
}
