// Puts it together.
function heading() {
  const v = view(), when = new Date(Number(BigInt(D.start_ns) / 1000000n)).toISOString().replace("T", " ").slice(0, 19);
  const blocks = v.layers.reduce((a, l) => a + l.allocations, 0), lost = D.end.lost_of_memory;
  const title = D.title || (D.views.length > 1 ? W.titleMany(D.views.length) : W.title(v.pid, device(v.device)));
  $("title").textContent = clean(title);
  document.title = clean(title);
  $("subtitle").textContent = clean([v.command, W.subtitle(when, span(v.end - v.start), count(blocks), count(v.steps_ended) === "0" ? "" : count(v.steps_ended), lost ? W.lossy(count(lost)) : D.end.losses.length ? W.memoryWhole : W.lossless), D.part && W.part(D.part)].filter(Boolean).join(" · "));
  document.documentElement.lang = locale;
  for (const e of document.querySelectorAll("[data-t]")) e.textContent = W[e.dataset.t];
  $("search").placeholder = W.search + " …";
  $("language").textContent = locale === "en" ? "中文" : "English";
  $("language").lang = locale === "en" ? "zh" : "en";
}
function choices() {
  const l = layer(), ends = l.moments.map(m => [m.kind, m.kind === "oom" ? W.oomMoment : W[m.kind]]);
  choice("layers", view().layers.map((l, i) => [i, l.pool]), state.layer, i => { state.layer = i; pick(); all(); });
  choice("moment", [...ends, ["all", W.all]], state.moment, m => { state.moment = m; state.path = []; shown.pick = null; flame(); places(); });
  choice("side", [["python", W.python], ["native", W.native]], state.side, s => { state.side = s; state.path = []; shown.pick = null; flame(); places(); });
}
// What is sensible for a layer: its whole time, the peak or the failure, and the stacks that there are.
function pick() {
  const v = view(), l = layer();
  Object.assign(state, { from: v.start, to: Math.max(v.end, v.start + 1), path: [], moment: l.moments.some(m => m.kind === "oom" && m.bytes) ? "oom" : "peak" });
  state.cursor = peakOf(l).t;
  const some = side => { const n = col("all", side, "node"); return n.length && n[n.length - 1] > 0; };
  state.side = some("python") || !some("native") ? "python" : "native";
  shown = {};
  pin(-1);
}
function show(i) { state.view = i; state.layer = 0; pick(); all(); }
function graphs() { readColours(); curve(); flame(); map(); segs(); pieces(); }
function all() {
  readColours(); heading(); choices(); compare(); verdict(); cards(); advice(); legend(); curve(); curveTable(); flame(); places(); checks(); heldBy(); map(); blockTable(); segs(); pieces(); oom(); whatIf(); ledger(); about();
}
let asked = false;
// Several changes within a frame are drawn once.
function redraw() { if (asked) return; asked = true; requestAnimationFrame(() => { asked = false; curve(); map(); }); }
function cursor(t) {
  const v = view();
  t = Math.min(v.end, Math.max(v.start, t));
  // A large run is known to the block at some moments only: go to the nearest.
  if (!layer().exact) t = layer().moments.map(m => m.t).reduce((a, k) => Math.abs(k - t) < Math.abs(a - t) ? k : a, peakOf(layer()).t);
  state.cursor = t;
  redraw(); segs();
}
function range(a, b) {
  const v = view(), least = Math.max(2, (v.end - v.start) / 1e6);
  if (b - a < least) b = a + least;
  const w = Math.min(b - a, v.end - v.start || 1);
  state.from = Math.max(v.start, Math.min(a, v.end - w)); state.to = state.from + w;
  redraw();
}
const around = (t, k) => range(t - (t - state.from) * k, t + (state.to - t) * k);
function wireCurve() {
  const c = $("curve");
  c.onpointerdown = e => { if (e.button) return; drag = [localX("curve", e), localX("curve", e)]; c.setPointerCapture(e.pointerId); };
  c.onpointermove = e => { if (drag) { drag[1] = localX("curve", e); redraw(); } tip(e, shown.curve.say(shown.curve.T(localX("curve", e)))); };
  c.onpointerup = () => {
    if (!drag) return;
    const moved = Math.abs(drag[0] - drag[1]) > 5, [a, b] = drag.map(shown.curve.T).sort((x, y) => x - y);
    drag = null;
    if (moved) { range(a, b); curveTable(); } else cursor(a);
  };
  c.ondblclick = () => range(view().start, view().end);
  c.onkeydown = keys;
}
function keys(e) {
  const d = { ArrowLeft: -1, ArrowRight: 1 }[e.key], k = { "+": .7, "=": .7, "-": 1.4 }[e.key];
  if (d) cursor(state.cursor + d * (state.to - state.from) / (e.shiftKey ? 20 : 200));
  if (k) around(state.cursor, k);
  if (e.key === "Escape") range(view().start, view().end);
  if (d || k) e.preventDefault();
}
function wireMap() {
  const m = $("map");
  m.onpointerdown = e => { if (e.button) return; pan = [e.clientX, state.from, state.to]; m.setPointerCapture(e.pointerId); };
  m.onpointermove = e => {
    if (pan) { const d = (e.clientX - pan[0]) / m.clientWidth * (pan[2] - pan[1]); range(pan[1] - d, pan[2] - d); tip(e, null); return; }
    const i = shown.map.hit(e);
    tip(e, i < 0 ? null : sayBlock(i));
  };
  m.onpointerup = e => { const moved = pan && Math.abs(e.clientX - pan[0]) > 4; pan = null; if (!moved) pin(shown.map.hit(e)); };
  m.addEventListener("wheel", e => { if (!e.ctrlKey) return; e.preventDefault(); around(shown.map.T(localX("map", e)), e.deltaY > 0 ? 1.25 : .8); }, { passive: false });
  m.ondblclick = () => range(view().start, view().end);
  m.onkeydown = keys;
  $("segments").onpointermove = e => { const i = shown.segs(e); tip(e, i < 0 ? null : sayBlock(i)); };
  $("segments").onclick = e => pin(shown.segs(e));
  $("slider").oninput = e => cursor(view().start + e.target.value / 1000 * (view().end - view().start));
}
function wire() {
  wireCurve();
  wireMap();
  for (const id of ["curve", "flame", "map", "segments"]) $(id).onpointerleave = () => tip(null, null);
  const f = $("flame");
  f.onpointermove = e => tip(e, shown.flame.say(flameAt(e)));
  f.onclick = e => { const n = flameAt(e); if (n) zoom(n === shown.flame.root && n.up ? n.up : n); };
  f.onkeydown = flameKeys;
  $("search").oninput = e => { state.query = e.target.value.trim().toLowerCase(); flame(); };
  $("fold").onchange = e => { state.fold = e.target.checked; state.path = []; shown.pick = null; flame(); };
  $("views").onchange = e => show(Number(e.target.value));
  $("language").onclick = () => { locale = locale === "en" ? "zh" : "en"; W = WORDS[locale]; all(); };
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const theme = name => { root.dataset.theme = name; all(); };
  $("theme").onclick = () => theme(root.dataset.theme === "dark" ? "light" : "dark");
  dark.onchange = () => theme(dark.matches ? "dark" : "light");
  let wait, before;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(graphs, 100); });
  addEventListener("beforeprint", () => { before = root.dataset.theme; theme("light"); });
  addEventListener("afterprint", () => theme(before));
}
async function main() {
  performance.mark("start");
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  if (/^zh/.test(navigator.language)) { locale = "zh"; W = WORDS.zh; }
  await unpack();
  performance.mark("unpacked");
  pick();
  wire();
  all();
  $("main").setAttribute("aria-busy", "false");
  performance.mark("drawn");
  document.documentElement.dataset.ready = "1";
}
main();
