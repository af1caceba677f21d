// What is said in words: verdict, cards, checks, out of memory, fragmentation, ledger, comparison, and where figures come from.
const endLabel = () => view().steps_ended ? W.afterSteps : W.atEnd;
const checkOf = (v, name) => v.checks.find(c => c.check === name);
const hourly = perSecond => bytes(Math.round(perSecond * 3600));
const findingsOf = kind => D.findings.filter(f => f.finding === kind && f.pid === view().pid && f.device === view().device);
function verdictOf(v) {
  const oom = checkOf(v, "oom"), steps = checkOf(v, "steps"), growth = checkOf(v, "growth");
  if (oom.status === "found") { const p = oom.places[oom.places.length - 1]; return ["found", W.oomTitle(bytes(p.bytes)), sayFailed(p), p]; }
  if (steps.status === "found") { const p = steps.places[0]; return ["found", W.stepsTitle(bytes(steps.bytes), count(steps.blocks), count(steps.count)), W.stepsText(bytes(p.bytes), count(p.blocks), count(p.steps), count(steps.steps_ended)), p]; }
  if (growth.status === "found") { const p = growth.places[0]; return ["found", W.growthTitle(hourly(growth.per_second), count(growth.count)), W.growthText(hourly(p.per_second), count(p.blocks)), p]; }
  const open = [steps, growth].find(c => c.status === "undecided");
  if (open) return ["undecided", W.undecidedTitle, W.undecidedText(bytes(open.bytes)), open.places[0]];
  return ["not_found", W.fine, v.checks.some(c => c.status === "not_judged") ? W.fineText : "", null];
}
function verdict() {
  const [status, title, text, place] = verdictOf(view()), box = $("verdict");
  box.className = "verdict " + status;
  box.replaceChildren(el("b", "", title), el("span", "", text + (place && placeOf(place.python, place.native) ? " → " + placeText(place) : "")));
}
function rows(items) {
  return el("div", "rows", null, ...items.flatMap(([colour, name, value]) => { const s = el("span", "", name); s.title = clean(name); return [dot(colour), s, el("em", "", value)]; }));
}
function meter(parts) {
  const sum = parts.reduce((a, p) => a + p[1], 0) || 1, e = el("div", "meter");
  for (const [colour, n] of parts) { const i = dot(colour); i.style.width = 100 * n / sum + "%"; e.append(i); }
  return e;
}
function card(title, big, sub, kids, go) {
  const e = el("div", "card", null, el("h3", "", title), el("div", "big" + (String(big).length > 13 ? " small" : ""), big), el("div", "sub", sub), ...kids);
  if (go) { const a = el("a", "go", go[1]); a.href = "#" + go[0]; e.append(a); }
  return e;
}
function cards() {
  const v = view(), l = layer(), peak = peakOf(l), res = reservedAt(l, peak.t), led = findingsOf("ledger").find(f => f.moment === "peak"), capacity = led?.capacity_bytes;
  const step = v.steps.length ? stepAt(peak.t) : 0, cached = Math.max(0, res - peak.bytes), unseen = Math.max(0, l.reported_peak - peak.bytes);
  const colourOf = o => { const i = l.parts.indexOf(o, 1); return i < 0 ? palette[0] : partColour(l, i); };
  const full = card(W.full, bytes(peak.bytes), W.atPeak(span(peak.t), step), [meter([[palette[1], peak.bytes], [inks.free, cached]]), rows([[palette[1], W.inUse, bytes(peak.bytes)], ...(l.base ? [] : [[inks.free, W.cached, res ? bytes(cached) : W.unknown]]), ...(unseen ? [["transparent", W.unseen, bytes(unseen)]] : []), ["transparent", W.capacity, capacity ? bytes(capacity) : W.unknown], ["transparent", endLabel(), bytes(endOf(l).bytes)]])], ["curve", W.goCurve]);
  const tops = peak.owners.slice(0, 5), left = peak.owners.slice(5).reduce((a, o) => a + o[1], 0);
  const holder = peak.owners.find(o => o[0]) && peak.owners[0], who = card(W.whoHolds, holder ? ownerName(holder[0]) : W.unnamed, holder ? W.ofPeak(percent(holder[1], peak.bytes)) : "", [meter(peak.owners.map(o => [colourOf(o[0]), o[1]])), rows([...tops.map(o => [colourOf(o[0]), ownerName(o[0]), bytes(o[1])]), ...(left ? [[palette[0], W.rest, bytes(left)]] : [])])], ["where", W.goWhere]);
  const steps = checkOf(v, "steps"), growth = checkOf(v, "growth"), grows = [steps, growth].find(c => c.status === "found") || [steps, growth].find(c => c.status === "undecided");
  const top = grows?.places[0], rate = !top ? "" : grows.per_second ? W.anHour(hourly(grows.per_second)) : grows.blocks ? W.blocksAt(count(grows.blocks), count(grows.count)) : W.someBlocks(count(top.blocks));
  const growing = card(W.grows, grows ? bytes(grows.bytes) : W.nothing, grows ? W[grows.status] + (rate ? " · " + rate : "") : steps.status === "not_judged" && growth.status === "not_judged" ? W.not_judged : W.steady, top ? [el("div", "sub", placeText(top))] : [], ["checksPanel", W.goChecks]);
  const oom = checkOf(v, "oom"), p = oom.places[oom.places.length - 1];
  const failed = card(W.why, p ? bytes(p.bytes) : oom.status === "not_judged" ? W.unknown : W.nothing, p ? W.times(count(oom.count)) : oom.status === "not_judged" ? W.said.not_judged[oom.why] : W.noFail, p ? [el("div", "sub", placeText(p))] : [], p ? ["oomPanel", W.goOom] : null);
  const f = checkOf(v, "fragmentation"), pieced = card(W.pieced, f.status === "not_judged" ? W.unknown : bytes(f.bytes), f.status === "not_judged" ? W.said.not_judged[f.why] : W.scattered, f.total_bytes ? [meter([[palette[6], f.bytes], [inks.free, f.total_bytes - f.bytes]]), el("div", "sub", W.small(percent(f.bytes, f.total_bytes)))] : [], f.total_bytes ? ["piecesPanel", W.goPieces] : null);
  $("cards").replaceChildren(full, who, growing, failed, pieced);
}
// What was found, why, and what to try. Sentences come from the program that made the page.
function advice() {
  const v = view(), found = D.cards.filter(c => c.pid === v.pid && c.device === v.device);
  $("advicePanel").hidden = !found.length;
  const line = a => el("li", "", null, document.createTextNode(clean(a.text)), ...(a.versions || a.sources ? [el("div", "hint", [a.versions, ...(a.sources || [])].filter(Boolean).join(" · "))] : []));
  $("advice").replaceChildren(...found.map(c => {
    const kids = [el("div", "detail", c.text)];
    if (c.advice.length) kids.push(el("div", "detail", null, el("b", "", W.tryThis), el("ul", "tries", null, ...c.advice.map(line))));
    if (c.evidence.length) kids.push(el("details", "", null, el("summary", "", W.evidence), el("ul", "", null, ...c.evidence.map(e => el("li", "", e)))));
    if (c.confidence === "doubtful") kids.push(el("div", "hint", W.doubtful));
    const card = el("div", "finding", null, el("span", "tag " + W.levelTag[c.level], W.level[c.level]), el("b", "", W.rules[c.rule] || c.title), ...kids);
    card.dataset.rule = c.rule;
    return card;
  }), ...(found.length && D.cards_left_out ? [el("div", "hint", W.moreCards(count(D.cards_left_out)))] : []));
}
// Why a request failed, as far as it is known.
const sayFailed = p => !p.cause ? "" : { full: c => W.oomShort(bytes(c.unused_bytes), bytes(c.missing_bytes)), fragmented: c => W.oomPieces(bytes(c.unused_bytes)), not_given: c => W.oomNotGiven(bytes(c.largest_bytes)), limit: c => W.oomLimit(bytes(c.unused_bytes)) }[p.cause.kind](p.cause);
function sayPlace(c, p) {
  if (c.check === "oom") return [bytes(p.bytes), sayFailed(p)].filter(Boolean).join(": ");
  if (p.undecided) return W.openText(bytes(p.bytes), count(p.blocks)) + (locale === "en" && p.undecided !== "growth" ? ` ${p.undecided}.` : "");
  if (c.check === "steps") return W.leakText(bytes(p.bytes), count(p.blocks), count(p.steps), count(c.steps_ended), p.first === p.last ? p.first : `${p.first}–${p.last}`);
  return W.growText(hourly(p.per_second), bytes(p.bytes), count(p.blocks));
}
function checks() {
  $("checks").replaceChildren(...view().checks.map(c => {
    const said = W.said[c.status]?.[c.status === "not_judged" ? c.why : c.check], text = typeof said === "function" ? said(count(c.steps_ended ?? 0)) : said;
    const kids = c.places.map(p => {
      const where = p.python || p.native ? el("details", "", null, el("summary", "", placeText(p)), el("div", "cols", null, stackBlock(p.python), stackBlock(p.native))) : el("div", "hint", W.noStack);
      return el("div", "detail", null, ...(p.undecided && c.status !== "undecided" ? [el("span", "tag undecided", W.undecided)] : []), document.createTextNode(clean(sayPlace(c, p))), where, ...(p.held_by || []).map(line => el("div", "hint", clean(line))));
    });
    if (kids.length > 6) kids.push(el("details", "", null, el("summary", "", W.further(count(kids.length - 5))), ...kids.splice(5)));
    if (c.check === "fragmentation" && c.status === "found") kids.push(el("div", "detail", W.piecesText(bytes(c.bytes), percent(c.bytes, c.total_bytes))));
    if (c.confidence === "doubtful") kids.push(el("div", "hint", W.doubtful));
    const shownPlaces = c.places.filter(p => !p.undecided).length;
    if (c.status === "found" && shownPlaces && c.count > shownPlaces) kids.push(el("div", "hint", W.more(count(c.count - shownPlaces))));
    return el("div", "finding", null, el("span", "tag " + c.status, W[c.status]), el("b", "", W.check[c.check]), ...(text ? [el("div", "detail", text)] : []), ...kids);
  }));
}
// What held the blocks of each place while the process lived.
function heldBy() {
  const found = findingsOf("held_by");
  $("heldPanel").hidden = !found.length;
  const path = (h, p) => `${h.is_sure ? "" : "? "}${clean(h.path)} (${count(h.blocks)}/${count(p.looked_at_blocks)})`;
  const row = p => [[bytes(p.live.size_bytes), "n"], [count(p.live.blocks), "n"], [framesOf(p.stacks)[0] || W.noStack, "w"], [p.holders.map(h => path(h, p)).join("; ") || (p.unknown_blocks ? W.noHolder : W.garbage), "w"]];
  $("heldBy").replaceChildren(...found.map(f => f.not_looked_for ? el("p", "hint", W.notLooked(clean(f.not_looked_for))) : table(el("table"), [[W.size, "n"], [W.count, "n"], [W.place], [W.holder]], f.places.map(row), W.lookedAt[f.looked_at])));
}
const framesOf = s => [...(s?.python?.frames || []), ...(s?.mixed?.frames || s?.native?.frames || [])];
function oom() {
  const found = findingsOf("oom");
  $("oomPanel").hidden = !found.length;
  $("oom").replaceChildren(...found.slice(-3).reverse().flatMap(f => {
    const t = table(el("table"), [[W.pool], [W.used, "n"], [W.reservedCol, "n"], [W.largestCol, "n"]], f.pools.map(p => [[p.pool], ...["used_bytes", "reserved_bytes", "largest_free_bytes"].map(k => [p[k] == null ? W.unknown : bytes(p[k]), "n"])]));
    const list = (title, items) => table(el("table"), [[W.pool], [W.size, "n"], [W.place]], items.map(b => [[b.pool], [bytes(b.size_bytes), "n"], [framesOf(b.stacks)[0] || W.noStack, "w"]]), title);
    const pools = f.pools.some(p => p.pool !== "HAL" && p.used_bytes), only = items => pools ? items.filter(b => b.pool !== "HAL") : items;
    return [el("p", "", W.asked(f.function || W.unknown, bytes(f.size_bytes), f.attempts)), t, el("h3", "", W.askedAt), el("pre", "", framesOf(f.stacks).slice(0, 40).join("\n") || W.noStack), el("div", "cols", null, list(W.largestBlocks, only(f.top)), list(W.newestBlocks, only(f.recent))), el("details", "", null, el("summary", "", W.lastEvents), el("pre", "", f.last_events.join("\n")))];
  }));
}
// The run's requests replayed under other settings of the pool.
function whatIf() {
  const v = view(), found = D.what_if.tables.find(t => t.pid === v.pid && t.device === v.device), left = D.what_if.left_out.includes(v.pid);
  $("whatIfPanel").hidden = !found && !left;
  $("whatIf").replaceChildren();
  $("whatIfBounds").textContent = "";
  if (!found) { $("whatIfHint").textContent = left ? W.whatIfLeft(count(D.what_if.most)) : ""; return; }
  const range = (s, say) => s.least === s.most ? say(s.most) : `${say(s.least)} … ${say(s.most)}`;
  const gain = r => { const now = found.now.reserved_peak_bytes.most, most = r.reserved_peak_bytes.most; return r === found.now || most === now ? "" : (most < now ? "−" : "+") + percent(Math.abs(now - most), now); };
  const row = r => [[r.settings || W.noSettings, "w"], [range(r.reserved_peak_bytes, bytes), "n"], [gain(r), "n"], [range(r.driver_calls, count), "n"], [range(r.retries, count), "n"], [r.least_bytes == null ? "" : bytes(r.least_bytes), "n"], [W.sure[r.sure]]];
  $("whatIfHint").textContent = (found.whole ? W.reproduced(count(found.events)) : W.notReproduced(count(found.agreeing), count(found.events))) + " " + (found.better.length ? W.whatIfTried(count(found.tried)) : W.whatIfKeep(count(found.tried)));
  const t = table("whatIf", [[W.settings], [W.reservedPeak, "n"], [W.gain, "n"], [W.driverCalls, "n"], [W.retries, "n"], [W.leastMemory, "n"], [W.certainty]], [row(found.now), ...found.better.map(row)]);
  t.tBodies[0].rows[0].classList.add("on");
  $("whatIfBounds").textContent = found.in_use_bytes == null ? "" : W.whatIfBounds(bytes(found.in_use_bytes), found.packed_bytes == null ? "" : bytes(found.packed_bytes));
}
function ledger() {
  const found = findingsOf("ledger");
  $("ledgerPanel").hidden = !found.length;
  $("ledger").replaceChildren(...found.map(f => {
    const line = (sign, e) => [[`${sign} ${e.item.replaceAll("_", " ")}${e.pool ? " " + e.pool : ""}${e.module ? " " + e.module : ""}`], [bytes(e.size_bytes), "n"], [count(e.size_bytes), "n"]];
    const sheet = s => [line("=", s.total), ...s.parts.filter(p => p.size_bytes).map(p => line(p.sign === "plus" ? "+" : "−", p))];
    return table(el("table"), [[""], [W.bytes, "n"], ["B", "n"]], [...(f.used ? sheet(f.used) : []), ...sheet(f.hal)], W.ledgerAt[f.moment]);
  }));
}
// Of the run's clock, as the findings have it, in units of the page.
const tickOf = ns => Number((BigInt(ns) - BigInt(D.start_ns)) / BigInt(D.unit_ns));
function pieces() {
  const f = findingsOf("fragmentation").find(f => f.pool === layer().pool);
  $("piecesPanel").hidden = !f || !f.series.length;
  if (!f || !f.series.length) return;
  const [g, w, h] = canvas("pieces", 170), most = Math.max(1, ...f.series.map(s => s.worst.free_bytes)) * 1.1, t0 = tickOf(Math.round(f.start_ns)), ts = f.series.map(s => Math.min(view().end, tickOf(Math.round(s.time_ns)))), t1 = Math.min(ts[ts.length - 1], Math.max(view().end, t0 + 1));
  const X = t => PAD.l + (t - t0) / (t1 - t0 || 1) * (w - PAD.l - PAD.r), Y = v => h - PAD.b - v / most * (h - PAD.b - 12);
  g.textAlign = "right";
  for (let v = 0, s = niceStep(most, 3); v <= most; v += s) { g.fillStyle = inks.line; g.fillRect(PAD.l, Math.round(Y(v)), w - PAD.l - PAD.r, 1); g.fillStyle = inks.soft; g.fillText(bytes(v), PAD.l - 8, Y(v)); }
  const stepped = (key, colour) => {
    g.beginPath(); g.moveTo(PAD.l, Y(0));
    f.series.forEach((s, i) => { const x = X(i ? ts[i - 1] : t0), y = Y(s.worst[key]); g.lineTo(x, y); g.lineTo(X(ts[i]), y); });
    g.lineTo(X(t1), Y(0)); g.closePath(); g.fillStyle = colour; g.fill();
  };
  stepped("free_bytes", palette[6]); stepped("largest_free_bytes", inks.free);
  g.textAlign = "left"; g.fillStyle = palette[6]; g.fillRect(PAD.l + 8, 4, 10, 10); g.fillStyle = inks.ink; g.fillText(W.freeBytes, PAD.l + 23, 9);
  const off = PAD.l + 40 + g.measureText(W.freeBytes).width; g.fillStyle = inks.free; g.fillRect(off, 4, 10, 10); g.fillStyle = inks.ink; g.fillText(W.largestPiece, off + 15, 9);
  g.fillStyle = inks.soft; g.textAlign = "center"; for (const k of [0, .25, .5, .75, 1]) g.fillText(span(t0 + (t1 - t0) * k), Math.min(w - 34, X(t0 + (t1 - t0) * k)), h - 9);
  const worst = f.worst?.space;
  $("piecesHint").textContent = worst ? W.piecesHint(bytes(worst.total_bytes), bytes(worst.free_bytes), bytes(worst.largest_free_bytes)) : "";
  $("pieces").setAttribute("aria-label", `${W.pieces}: ${$("piecesHint").textContent}`);
  const every = Math.max(1, Math.floor(f.series.length / 24));
  table("piecesTable", [[W.time], [W.used, "n"], [W.free, "n"], [W.largestCol, "n"]], f.series.filter((_, i) => i % every === 0).map(s => [[span(tickOf(Math.round(s.time_ns)))], ...["used_bytes", "free_bytes", "largest_free_bytes"].map(k => [bytes(s.worst[k]), "n"])]));
  const pins = (f.worst || f.end).pinned.flatMap(s => s.blocks.slice(0, 4).map(b => [[W.pinHint(bytes(s.size_bytes), bytes(s.used_bytes))], [bytes(b.size_bytes), "n"], [ownerName(b.owner)], [framesOf(b.stacks)[0] || W.noStack, "w"]])).slice(0, 12);
  $("pins").replaceChildren(...(pins.length ? [table(el("table"), [[W.segments], [W.size, "n"], [W.owner], [W.place]], pins, W.pinned)] : []));
}
function compare() {
  $("compare").hidden = $("chooser").hidden = D.views.length < 2;
  if (D.views.length < 2) return;
  const main = v => v.layers[0], most = Math.max(1, ...D.views.map(v => peakOf(main(v)).bytes));
  const t = table("ranks", [[W.rank.name], [W.rank.peak, "n"], [W.rank.end, "n"], [W.rank.reserved, "n"], [W.rank.blocks, "n"], [W.rank.owner], [W.rank.found]], D.views.map((v, i) => {
    const l = main(v), p = peakOf(l), share = el("i", "share"), open = el("button", "", viewName(v)), status = verdictOf(v)[0];
    share.style.width = Math.max(1, 90 * p.bytes / most) + "px"; open.type = "button"; open.onclick = () => show(i);
    const owner = p.owners[0];
    return [el("td", "", null, open, el("span", "sub", " " + l.pool)), el("td", "n", bytes(p.bytes), share), [bytes(endOf(l).bytes), "n"], [bytes(C[`${i}.0.reserved`][binAt(l, p.t)]), "n"], [count(l.allocations), "n"], [owner ? `${ownerName(owner[0])} ${percent(owner[1], p.bytes)}` : ""], el("td", "", null, el("span", "tag " + status, W[status]))];
  }));
  [...t.tBodies[0].rows].forEach((r, i) => r.classList.toggle("on", i === state.view));
  $("views").replaceChildren(...D.views.map((v, i) => { const o = el("option", "", viewName(v)); o.value = i; o.selected = i === state.view; return o; }));
}
function about() {
  const e = D.end, lines = [e.lost_of_memory ? W.lost(count(e.lost_of_memory)) : e.losses.length ? W.wholeFigures : W.noLost];
  if (e.without_stack) lines.push(W.noStacks(count(e.without_stack)));
  if (e.fault) lines.push(e.fault);
  for (const c of e.cut_stacks) lines.push(W.cut(c.kind, count(c.count), c.reason));
  if (D.stacks_cut) lines.push(W.stacksCut(count(D.stacks_cut)));
  if (D.left_out) lines.push(W.leftOut(count(D.left_out)));
  if (D.views.some(v => v.attached)) lines.push(W.attached);
  lines.push(W.madeBy(D.tool, D.version));
  $("about").replaceChildren(...lines.map((l, i) => el("p", i ? "hint" : "", l)), ...(e.losses.length ? [table(el("table"), [[""], [""], ["", "n"], [""]], e.losses.map(l => [[l.layer], [l.symbol], [count(l.count), "n"], [l.reason]]))] : []));
}
