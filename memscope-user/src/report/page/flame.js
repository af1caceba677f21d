// Where memory was allocated: an icicle of call stacks, outermost frame on top.
const ROW = 21, MAX_BOXES = 12000;
let forest = {};
function tree() {
  const key = [state.view, state.layer, state.moment, state.side, state.fold].join();
  if (forest.key === key) return forest.root;
  const node = col(state.moment, state.side, "node"), by = col(state.moment, state.side, "bytes"), blocks = col(state.moment, state.side, "blocks");
  const root = { name: null, bytes: 0, blocks: 0, self: 0, kids: new Map(), up: null, kind: NATIVE };
  for (let i = 0; i < node.length; i++) {
    const path = [];
    for (let k = node[i]; k; k = C.parent[k]) path.push(C.frame[k]);
    let on = root, framework = false;
    root.bytes += by[i]; root.blocks += blocks[i];
    for (let j = path.length - 1; j >= 0; j--) {
      const kind = kindOfNumber(path[j]);
      // Of frames of frameworks that call each other the first is shown, which the reader's code called.
      if (state.fold && j > 0 && (boring(D.frames[path[j]]) || (framework && kind === PACKAGES))) continue;
      framework = kind === PACKAGES;
      let kid = on.kids.get(path[j]);
      if (!kid) on.kids.set(path[j], kid = { name: D.frames[path[j]], number: path[j], bytes: 0, blocks: 0, self: 0, kids: new Map(), up: on, kind });
      kid.bytes += by[i]; kid.blocks += blocks[i]; on = kid;
    }
    on.self += by[i];
  }
  forest = { key, root };
  return root;
}
function rootOf(all) {
  let on = all;
  for (const n of state.path) { const kid = on.kids.get(n); if (!kid) break; on = kid; }
  return on;
}
const pathOf = n => { const path = []; for (let k = n; k.up; k = k.up) path.unshift(k.number); return path; };
// The largest first; both are kept, since each letter of a search asks all nodes.
const kidsOf = n => n.sorted ??= [...n.kids.values()].sort((a, b) => b.bytes - a.bytes || a.number - b.number);
const textOf = n => n.text ??= n.name ? frameText(n.name).toLowerCase() : "";
function flame() {
  const all = tree(), root = rootOf(all), q = state.query, total = root.bytes || 1;
  const hit = n => textOf(n).includes(q);
  const boxes = [], w0 = $("flame").clientWidth || 1200;
  let hits = 0, level = [[root, 0, w0, false]], depth = 0;
  for (; level.length && depth < 120 && boxes.length < MAX_BOXES; depth++) {
    const next = [];
    for (const [n, x, w, under] of level) {
      const on = under || (q && hit(n));
      if (on && !under) hits += n.bytes;
      boxes.push([x, w, depth, n, !q || on]);
      let left = x;
      for (const kid of kidsOf(n)) {
        const kw = w * kid.bytes / (n.bytes || 1);
        if (kw >= .4) next.push([kid, left, kw, on]);
        else if (q) { const walk = k => { if (hit(k)) return k.bytes; let sum = 0; for (const c of k.kids.values()) sum += walk(c); return sum; }; if (!on) hits += walk(kid); }
        left += kw;
      }
    }
    level = next;
  }
  const [g, w] = canvas("flame", depth * ROW + 2);
  for (const [x, pw, d, n, on] of boxes) {
    g.globalAlpha = on ? 1 : .22;
    g.fillStyle = n === all ? inks.free : palette[n.kind];
    g.fillRect(x, d * ROW, Math.max(.5, pw - 1), ROW - 2);
    if (n !== all && n.kind !== OWN) { g.globalAlpha *= .35; g.fillStyle = inks.card; g.fillRect(x, d * ROW, Math.max(.5, pw - 1), ROW - 2); }
    g.globalAlpha = 1;
    if (pw > 34) {
      g.save(); g.beginPath(); g.rect(x, d * ROW, pw - 4, ROW); g.clip();
      g.fillStyle = n === all || !on ? inks.ink : "#0d1117"; g.textAlign = "left";
      g.fillText(clean(n === all ? `${layer().name}: ${W.blocksIn(bytes(n.bytes), count(n.blocks))}` : shortFrame(n.name)).slice(0, 300), x + 6, d * ROW + ROW / 2 - .5);
      g.restore();
    }
  }
  if (shown.pick) { const b = boxes.find(b => b[3] === shown.pick); if (b) { g.strokeStyle = inks.ink; g.lineWidth = 2; g.strokeRect(b[0] + 1, b[2] * ROW + 1, b[1] - 3, ROW - 4); } }
  shown.flame = { boxes, all, root, say: n => n && [n === all ? layer().name : frameText(n.name), `${bytes(n.bytes)} · ${W.of(percent(n.bytes, all.bytes), bytes(all.bytes))}`, `${W.someBlocks(count(n.blocks))} · ${W.here(bytes(n.self))}`].join("\n") };
  $("match").textContent = q ? W.match(bytes(hits), percent(hits, total)) : "";
  $("crumbs").replaceChildren(...[...(function* () { for (let n = root; n; n = n.up) yield n; })()].reverse().map(n => { const b = el("button", "", n === all ? W.allFrames : shortFrame(n.name)); b.type = "button"; b.onclick = () => zoom(n); return b; }));
  $("flame").setAttribute("aria-label", `${W.where}: ${W.blocksIn(bytes(all.bytes), count(all.blocks))}`);
}
function zoom(n) { state.path = pathOf(n); shown.pick = n; flame(); }
const flameAt = e => { const x = localX("flame", e), d = Math.floor(localY("flame", e) / ROW), b = shown.flame.boxes.find(b => b[2] === d && x >= b[0] && x < b[0] + b[1]); return b && b[3]; };
function flameKeys(e) {
  const all = tree(), n = shown.pick || rootOf(all);
  const beside = d => { const row = n.up ? kidsOf(n.up) : [n]; return row[row.indexOf(n) + d]; };
  const to = { ArrowDown: () => kidsOf(n)[0], ArrowUp: () => n.up, ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) }[e.key];
  if (to) { const next = to(); if (next) { shown.pick = next; flame(); $("match").textContent = shown.flame.say(next).replaceAll("\n", " · "); } e.preventDefault(); }
  if (e.key === "Enter") { zoom(n); e.preventDefault(); }
  if (e.key === "Escape") zoom(all);
}
function places() {
  const node = col(state.moment, state.side, "node"), by = col(state.moment, state.side, "bytes"), blocks = col(state.moment, state.side, "blocks");
  const total = by.reduce((a, b) => a + b, 0), top = [...node.keys()].sort((a, b) => by[b] - by[a]).slice(0, 60);
  table("places", [[W.bytes, "n"], [W.share, "n"], [W.count, "n"], [W.frames]], top.map(i => {
    const on = state.side === "python" ? [node[i], 0] : [0, node[i]], place = placeOf(...on), share = el("i", "share");
    share.style.width = Math.max(1, 60 * by[i] / (by[top[0]] || 1)) + "px";
    const where = node[i] ? el("details", "", null, el("summary", "", place ? shortFrame(place) : W.noStack), stackBlock(node[i])) : el("span", "", W.noStack);
    return [el("td", "n", bytes(by[i]), share), [percent(by[i], total), "n"], [count(blocks[i]), "n"], el("td", "w", null, where)];
  }));
  $("kinds").replaceChildren(...[[OWN, W.yourCode], [PACKAGES, W.packages], [NPU, W.npu], [NATIVE, W.nativeCode]].map(([k, t]) => el("span", "", null, dot(palette[k]), document.createTextNode(t))));
}
