// The container: a JSON head, then columns in byte planes.  A column is put together when it is first used.
let D, W = WORDS.en, locale = "en";
const C = {};
const $ = id => document.getElementById(id);

async function unpack() {
  const text = $("data").textContent;
  const packed = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), c => c.charCodeAt(0));
  $("data").remove();                                   // its text would stay in memory
  const raw = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
  let at = 4 + new DataView(raw).getUint32(0, true);
  D = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 4, at - 4)));
  const width = { u8: 1, u32: 4, f64: 8 };
  for (const [name, kind, n, sorted] of D.columns) {
    const from = new Uint8Array(raw, at, n * width[kind]);
    at += from.length;
    let made;
    Object.defineProperty(C, name, { get: () => made ??= column(from, kind, n, sorted) });
  }
}
function column(from, kind, n, sorted) {
  if (kind === "u8") return from;
  const w = kind === "u32" ? 4 : 8, to = new Uint8Array(n * w);
  for (let b = 0; b < w; b++) for (let i = 0, o = b, f = b * n; i < n; i++, o += w) to[o] = from[f + i];
  const got = new (kind === "u32" ? Uint32Array : Float64Array)(to.buffer);
  if (sorted) for (let i = 1; i < n; i++) got[i] += got[i - 1];
  return got;
}

// Every text of the traced program reaches the page by textContent or fillText.  Control and direction characters could make a name look
// like another one.
const clean = s => String(s).replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu, "\ufffd");
function el(tag, cls, text, ...kids) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text != null) e.textContent = clean(text);
  e.append(...kids);
  return e;
}
function dot(colour) { const i = el("i"); i.style.background = colour; return i; }
const bytes = n => {
  const sign = n < 0 ? "−" : "";
  n = Math.abs(n);
  for (const [unit, f] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) {
    if (n >= f) return sign + (n / f).toFixed(n / f >= 100 ? 0 : n / f >= 10 ? 1 : 2) + " " + unit;
  }
  return sign + Math.round(n) + " B";
};
const count = n => n.toLocaleString("en");
const percent = (a, b) => b ? (100 * a / b >= 10 || a === 0 ? Math.round(100 * a / b) : (100 * a / b).toFixed(1)) + " %" : "–";
const span = t => { const s = t * D.unit_ns / 1e9; return s >= 7200 ? (s / 3600).toFixed(2) + " h" : s >= 100 ? s.toFixed(1) + " s" : s >= 1 ? s.toFixed(2) + " s" : s >= 1e-3 ? (s * 1e3).toFixed(2) + " ms" : (s * 1e6).toFixed(1) + " µs"; };

// What is shown.
const state = { view: 0, layer: 0, side: "python", moment: "peak", from: 0, to: 1, cursor: 0, query: "", fold: true, path: [] };
const view = () => D.views[state.view], layer = () => view().layers[state.layer];
const col = (...name) => C[[`${state.view}.${state.layer}`, ...name].join(".")];
const peakOf = l => l.moments.find(m => m.kind === "peak") || { t: 0, bytes: 0, blocks: 0, owners: [], reserved: null };
const endOf = l => l.moments.find(m => m.kind === "step" || m.kind === "end") || peakOf(l);
const stepAt = t => {
  const steps = view().steps;
  let a = 0, b = steps.length;
  while (a < b) { const m = (a + b) >> 1; if (steps[m][0] <= t) a = m + 1; else b = m; }
  return a;
};
const device = d => d == null ? W.none : d === "host" ? W.host : "NPU " + d.slice(4);
const viewName = v => `${W.process} ${v.pid}${v.command ? " " + v.command : ""}, ${device(v.device)}`;
const ownerName = o => o == null ? W.unnamed : !o.includes("@") ? `${W.unnamed} (${o})` : o.replace(/^[^@]*@/, "").replaceAll("@", " / ").replaceAll("_", " ");
const partName = (l, i) => i === 0 ? W.rest : ownerName(l.parts[i]);
// Colours are read once for each theme: asking the style costs more than a rectangle.
let palette = [], inks = {};
function readColours() {
  const css = getComputedStyle(document.documentElement), get = n => css.getPropertyValue("--" + n).trim();
  palette = Array.from({ length: 10 }, (_, i) => get("c" + i));
  inks = Object.fromEntries(["ink", "soft", "line", "card", "bg", "free", "band", "mark", "accent", "found"].map(n => [n, get(n)]));
}
// The rest is grey, and so is what no rule names.
const partColour = (l, i) => i === 0 || l.parts[i] == null ? palette[0] : palette[1 + (i - 1) % 9];

// Frames and stacks.
const frameText = f => f[1] ? `${f[0]}  ${f[1]}${f[2] ? ":" + f[2] : ""}` : f[0];
const shortFrame = f => f[1] ? `${f[0]}  ${f[1].split("/").slice(-2).join("/")}${f[2] ? ":" + f[2] : ""}` : f[0];
const OWN = 2, PACKAGES = 1, NPU = 5, NATIVE = 0;
function kindOf(f) {
  if (!f[3]) return NATIVE;
  if (/(site|dist)-packages\/torch_npu/.test(f[1])) return NPU;
  return /(site|dist)-packages\/|\/python3\.\d+\/|^<frozen/.test(f[1]) ? PACKAGES : OWN;
}
const boring = f => !f[3] && /^(_PyEval_|_PyObject_|_PyFunction_|PyObject_|PyEval_|Py_|_Py|cfunction_|slot_tp|type_call|method_vectorcall|_start$|__libc_start|\+0x)/.test(f[0]);
const kinds = [];
const kindOfNumber = n => kinds[n] ??= kindOf(D.frames[n]);
function stackOf(node) {
  const out = [];
  for (let k = node; k; k = C.parent[k]) out.push(D.frames[C.frame[k]]);
  return out;
}
// The frame that a reader knows: the innermost of its own code, else the innermost with a name.
function placeOf(python, native) {
  const p = stackOf(python), n = stackOf(native);
  return p.find(f => kindOf(f) === OWN) || p[0] || n.find(f => /\.|^main$/.test(f[0]) && !boring(f) && !/^(hal|rt|aclrt)[A-Z]/.test(f[0])) || n.find(f => !boring(f)) || n[0] || null;
}
const placeText = p => { const f = placeOf(p.python, p.native); return f ? shortFrame(f) : W.noStack; };
function stackBlock(node) { return el("pre", "", stackOf(node).map(frameText).join("\n") || W.noStack); }
function table(id, head, rows, caption) {
  const t = typeof id === "string" ? $(id) : id, top = el("tr");
  for (const [text, cls] of head) { const th = el("th", cls || "", text); th.scope = "col"; top.append(th); }
  const body = rows.map(cells => el("tr", "", null, ...cells.map(c => c instanceof Node ? c : el("td", c[1] || "", c[0]))));
  t.replaceChildren(...(caption ? [el("caption", "", caption)] : []), el("thead", "", null, top), el("tbody", "", null, ...body));
  return t;
}
function choice(id, items, current, set) {
  $(id).replaceChildren(...items.map(([value, label]) => {
    const b = el("button", "", label);
    b.type = "button";
    b.setAttribute("aria-pressed", value === current);
    b.onclick = () => { for (const o of $(id).children) o.setAttribute("aria-pressed", o === b); set(value); };
    return b;
  }));
}
function canvas(id, height) {
  const c = $(id), r = Math.min(devicePixelRatio || 1, 3), w = c.clientWidth || 1200;
  c.style.height = height + "px";
  c.width = Math.round(w * r);
  c.height = Math.round(height * r);
  const g = c.getContext("2d");
  g.setTransform(r, 0, 0, r, 0, 0);
  g.clearRect(0, 0, w, height);
  g.font = "12px system-ui, 'Noto Sans CJK SC', 'DejaVu Sans', sans-serif";
  g.textBaseline = "middle";
  return [g, w, height];
}
function tip(e, text) {
  const t = $("tip");
  t.hidden = !text;
  if (!text) return;
  t.textContent = clean(text);
  const r = t.getBoundingClientRect();
  t.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - r.width - 8)) + "px";
  t.style.top = (e.clientY + 18 + r.height > innerHeight ? Math.max(4, e.clientY - r.height - 10) : e.clientY + 18) + "px";
}
const localX = (id, e) => e.clientX - $(id).getBoundingClientRect().left;
const localY = (id, e) => e.clientY - $(id).getBoundingClientRect().top;
