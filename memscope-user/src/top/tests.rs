//! Hand-made moments on screens of several sizes.

use std::sync::{Arc, Mutex};

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::screen::lines_of;
use super::view::Input;
use super::*;
use crate::analyses::decompose::RuleSet;
use crate::analyses::device_use::DeviceUse;
use crate::analyses::growth::Trend;
use crate::analyses::live_use::{LiveUse, Moment, PlaceHolders};
use crate::analyses::sample::{Change, PoolSample, ProcessSample, Sample};
use crate::analyses::script::Script;
use crate::backend::ascend::pools;
use crate::model::{Device, EventKind, FreeCause, Pool};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const START_NS: u64 = 1_795_600_000 * SECOND;

fn pool(pool: Pool, live_bytes: u64) -> PoolSample {
    PoolSample {
        device: Device::Npu(0),
        pool,
        live_blocks: 3,
        live_bytes,
        unseen_bytes: 0,
        peak_bytes: live_bytes + MIB,
        recent: Some(Change { span_ns: 30 * SECOND, change_bytes: 6 << 20 }),
        allocations: 10,
        frees: 7,
        failed: 0,
        allocations_per_second: Some(1900.0),
        frees_per_second: Some(2.5),
        space: None,
        unknown_bytes: None,
    }
}

/// Two places in a pool, of one process; the first grows by 64 MiB between the moments.
fn moments(command: &str, file: &str) -> Vec<Moment> {
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    let mut script = Script::new(4711, Device::Npu(0));
    script.stacks(&[&format!("{file}(15): Cache.remember"), "serve.py(34): main"], &[]);
    script.alloc(pools::HAL, 0x1000, GIB).alloc(pools::PTA, 0x1000, 64 * MIB);
    script.stacks(&["/usr/lib/python3/site-packages/torch/nn/linear.py(7): __init__", "serve.py(3): load"], &[]);
    script.alloc(pools::PTA, 0x900_0000, 512 * MIB);
    let before = script.events().len();
    script.stacks(&[&format!("{file}(15): Cache.remember"), "serve.py(34): main"], &[]);
    script.alloc(pools::PTA, 0x3900_0000, 64 * MIB);
    let processes = |live: u64| {
        let pools = vec![pool(pools::HAL, GIB), PoolSample { failed: 2, ..pool(pools::PTA, live * MIB) }];
        vec![ProcessSample { pid: 4711, host: None, recent: None, pools }]
    };
    let device = |used_bytes, time_ns| DeviceUse {
        device: Device::Npu(0),
        time_ns,
        used_bytes,
        total_bytes: 64 * GIB,
        processes: None,
    };
    let sample = |time_ns, used, live| Sample {
        time_ns,
        interval_ns: SECOND,
        last: false,
        lost: 0,
        devices: Some(vec![device(used, time_ns)]),
        processes: processes(live),
    };
    script.events()[..before].iter().for_each(|event| live.observe(event));
    let first = live.look(sample(START_NS, 31 * GIB, 576));
    script.events()[before..].iter().for_each(|event| live.observe(event));
    let second = live.look(sample(START_NS + 30 * SECOND, 32 * GIB, 640));
    let mut moments = vec![first, second];
    for moment in &mut moments {
        moment.names = vec![crate::analyses::live_use::ProcessName { pid: 4711, command: command.to_owned() }];
    }
    moments
}

fn state() -> State {
    let mut state = State::default();
    for moment in moments("serve.py", "serve.py") {
        state.take(moment);
    }
    state
}

fn drawn(state: &State, view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen in memory");
    terminal.draw(|frame| draw(state, view, frame.area(), frame.buffer_mut())).expect("drawn");
    lines_of(terminal.backend().buffer())
}

fn line<'a>(lines: &'a [String], word: &str) -> &'a str {
    lines.iter().find(|line| line.contains(word)).unwrap_or_else(|| panic!("no `{word}`: {lines:#?}"))
}

/// Attached late, of the driver only the newest segment is seen, 66 MiB; the pool says that it hands out 800 MiB, and holds 834
/// beside that segment.
#[test]
fn memory_from_before_the_attach_is_in_use() {
    let space = Some(crate::analyses::fragmentation::FreeSpace { total_bytes: 66 * MIB, ..Default::default() });
    let late = pool(pools::PTA, 10 * MIB);
    let late = PoolSample { unseen_bytes: 790 * MIB, unknown_bytes: Some(834 * MIB), space, ..late };
    let used_by = |pools: Vec<PoolSample>| {
        let mut moment = moments("serve.py", "serve.py").remove(0);
        moment.sample.devices = None;
        moment.sample.processes = vec![ProcessSample { pid: 4711, host: None, recent: None, pools }];
        let mut state = State::default();
        state.take(moment);
        state.full().iter().map(|full| (full.device, full.used_bytes)).collect::<Vec<_>>()
    };
    let on_first = |bytes: u64| vec![(Device::Npu(0), bytes)];
    assert_eq!(used_by(vec![pool(pools::HAL, 66 * MIB), late]), on_first(900 * MIB));
    // Seen from the start, blocks of the driver contain the pool and what is beside it.
    assert_eq!(used_by(vec![pool(pools::HAL, GIB), late]), on_first(GIB));
    // Without any, all pools count.
    let other = pool(pools::ATB, 200 * MIB);
    assert_eq!(used_by(vec![PoolSample { space: None, unknown_bytes: None, ..late }, other]), on_first(1000 * MIB));
}

/// What holds the blocks of a place is below it: all of it for the chosen one, a line for one that grows, and all beside a call stack. A path of the
/// program is no order to the terminal.
#[test]
fn holders_are_below_their_place() {
    let mut moment = moments("serve.py", "serve.py").remove(1);
    let of_pool = moment.places.iter_mut().filter(|place| place.site.pool == pools::PTA);
    for (place, path) in of_pool.zip(["m.weights", "m.cache['\u{1b}[2J'][*]"]) {
        let lines = vec![format!("still held by: {path}  (3 of 3)"), "and by: m.other  (1 of 3)".to_owned()];
        let held_by = PlaceHolders { time_ns: START_NS, looked_at_blocks: 3, holders: Vec::new(), lines };
        place.held_by = Some(held_by);
    }
    moment.places[1].trend = Trend::Grows;
    let mut state = State::default();
    state.take(moment);
    let mut view = View::default();
    let below = |view: &View| {
        let lines = drawn(&state, view, 80, 24);
        let from = lines.iter().position(|line| line.starts_with(" PLACE")).expect("the list");
        lines[from + 1..]
            .iter()
            .map(|line| line.trim().split("  ").next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let order = below(&view);
    assert!(order[0].starts_with("serve.py:15"), "{order:#?}");
    assert_eq!(order[1..3], ["still held by: m.cache['\\x1b[2J'][*]", "and by: m.other"]);
    assert_eq!(order[3..5], ["serve.py:3 load", "still held by: m.weights"]);
    view.key(Input::Down, &state);
    let order = below(&view);
    assert!(order[0].starts_with("serve.py:15"), "{order:#?}");
    assert_eq!(order[1..4], ["serve.py:3 load", "still held by: m.weights", "and by: m.other"]);
    view.key(Input::Up, &state);
    view.key(Input::Enter, &state);
    let stack = drawn(&state, &view, 80, 24);
    assert!(line(&stack, "still held by").contains("m.cache") && line(&stack, "and by").contains("m.other"));
}

/// A list too long for the screen begins so that the chosen place is on it, with what is below it.
#[test]
fn lists_begin_where_the_choice_is_seen() {
    let below: Vec<Vec<String>> = [0, 2, 1, 0, 2].map(|lines| vec![String::new(); lines]).to_vec();
    let first = |chosen, most| lists::first_shown(&below, chosen, most);
    assert_eq!((first(0, 3), first(1, 4), first(1, 3)), (0, 0, 1));
    // Three lines for the last one, one for that before it, two for the third.
    assert_eq!((first(4, 3), first(4, 4), first(4, 5), first(4, 6)), (4, 3, 3, 2));
    // It is there, also where it does not fit.
    assert_eq!(first(4, 1), 4);
}

/// How full, how fast, when full; the pool's figures; what grows is first, though the other place holds more.
#[test]
fn eighty_columns() {
    let lines = drawn(&state(), &View::default(), 80, 24);
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    assert!(
        lines[0].starts_with(" memscope-bpf top  serve.py (pid 4711)") && lines[0].ends_with("lost 0"),
        "{lines:#?}"
    );
    // 1 GiB in 30 s; 32 GiB are left: 16 minutes.
    assert_eq!(lines[1], " npu:0   32.0 GiB of 64.0 GiB █████░░░░░ 50 %  +2.0 GiB/min  full in 16 min");
    let pta = line(&lines, "PTA npu:0");
    // 6 MiB in 30 s. The last column does not fit: what failed is beside it on wider screens.
    assert_eq!(
        pta.split_whitespace().collect::<Vec<_>>()[2..],
        ["640.0", "MiB", "641.0", "MiB", "+12.0", "MiB", "–", "1900", "2.5"]
    );
    let places: Vec<&String> = lines.iter().skip_while(|line| !line.contains("PLACE")).skip(1).take(3).collect();
    assert!(
        places[0].starts_with(" serve.py:15 Cache.remember ← ser")
            && places[0].contains("128.0 MiB +128.0 MiB       2")
    );
    // The user's frame, not torch's; it has not changed.
    assert!(
        places[1].starts_with(" serve.py:3 load") && places[1].contains("512.0 MiB          0       1"),
        "{}",
        places[1]
    );
    // Driver blocks are those of the pool, so they are not listed as well.
    assert_eq!(places[2], "");
    assert!(lines[23].contains("q quit") && lines[23].contains("sort: growth"));
    assert!(lines[23].ends_with("/ search  e explain  Enter stack  h help"), "{}", lines[23]);
    assert!(line(&lines, "PLACE").ends_with("BLOCKS  OLDEST SURE"), "{lines:#?}");
}

#[test]
fn wide_screens_have_more() {
    let lines = drawn(&state(), &View::default(), 200, 50);
    assert!(line(&lines, "PTA npu:0").ends_with("FAILED 2"));
    assert!(line(&lines, "Cache.remember").contains("serve.py:34 main"));
    // 576 MiB of both places at first: owners have all of what is live.
    assert!(line(&lines, "OWNER").contains("BLOCKS"));
}

/// A screen of any size, and a state without anything, is drawn.
#[test]
fn small_screens() {
    for (width, height) in [(1, 1), (10, 2), (40, 6), (80, 1)] {
        drawn(&state(), &View::default(), width, height);
        drawn(&State::default(), &View::default(), width, height);
    }
    let lines = drawn(&State::default(), &View::default(), 80, 3);
    assert_eq!(lines[0], " memscope-bpf top  waiting for the first sample");
}

/// Names that a terminal would obey, or that would forge a line.
#[test]
fn hostile_names() {
    let mut state = State::default();
    let name = "x\x1b]0;owned\x07\u{202e}\nfull";
    for moment in moments(name, name) {
        state.take(moment);
    }
    state.say(name.to_owned());
    let mut view = View::default();
    for key in [Input::Enter, Input::Letter('f')] {
        let text = drawn(&state, &view, 120, 30).concat() + &text(&state, 100);
        let bad = |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
        assert!(!text.contains(bad), "{text:?}");
        assert!(text.contains("\\u{202e}"), "{text}");
        view.key(key, &state);
    }
}

/// Each key does what the help says.
#[test]
fn keys() {
    let state = state();
    let mut view = View::default();
    let press = |view: &mut View, keys: &str| keys.chars().map(|key| view.key(Input::Letter(key), &state)).last();
    assert_eq!(press(&mut view, "q"), Some(Action::Quit));
    assert_eq!(press(&mut view, "r"), Some(Action::Report));
    press(&mut view, "s");
    let lines = drawn(&state, &view, 80, 24);
    // By live bytes the larger one is first.
    let first = lines.iter().skip_while(|line| !line.contains("PLACE")).nth(1).expect("a place");
    assert!(first.contains("load") && lines[23].contains("sort: live"), "{first}");
    press(&mut view, " ");
    assert!(view.is_paused() && drawn(&state, &view, 80, 24)[0].contains("PAUSED"));
    // The driver alone: its block of 1 GiB.
    press(&mut view, "l");
    assert!(line(&drawn(&state, &view, 80, 24), "Cache.remember").contains("1.0 GiB"));
    press(&mut view, "pp");
    assert_eq!(view.pid, None);
    // There is one line, so the choice stays on it.
    view.key(Input::Down, &state);
    assert_eq!(view.chosen, 0);
    view.key(Input::Enter, &state);
    assert!(line(&drawn(&state, &view, 80, 24), "CALL STACK").contains("pid 4711"));
    assert_eq!(view.key(Input::Escape, &state), Action::Draw);
    press(&mut view, "?");
    assert!(line(&drawn(&state, &view, 80, 24), "KEYS").contains("KEYS"));
    assert_eq!((view.key(Input::Escape, &state), view.key(Input::Escape, &state)), (Action::Draw, Action::Quit));
}

/// Places with a text in their stack alone; letters are text while it is typed, and not keys.
#[test]
fn search() {
    let state = state();
    let mut view = View::default();
    let press = |view: &mut View, keys: &str| {
        keys.chars().map(|key| view.key(Input::Letter(key), &state)).filter(|action| *action != Action::Draw).count()
    };
    let places = |view: &View| -> Vec<String> {
        let lines = drawn(&state, view, 80, 24);
        let places = lines.into_iter().skip_while(|line| !line.contains("PLACE")).skip(1);
        places.take_while(|line| !line.is_empty()).collect()
    };
    assert_eq!((places(&view).len(), press(&mut view, "/quartz")), (2, 0));
    assert_eq!(places(&view), [""; 0]);
    assert!(drawn(&state, &view, 80, 24)[23].starts_with(" /quartz█  Enter keep"));
    view.key(Input::Escape, &state);
    press(&mut view, "/LINEARs");
    view.key(Input::Back, &state);
    view.key(Input::Enter, &state);
    // Torch's file is in the stack of `load`, though not in its name.
    assert!(places(&view).len() == 1 && places(&view)[0].starts_with(" serve.py:3 load"), "{:?}", places(&view));
    assert!(drawn(&state, &view, 80, 24)[23].contains("/ \"LINEAR\"  e explain"));
    assert_eq!(press(&mut view, "/"), 0);
    press(&mut view, &"x".repeat(1000));
    assert!(view.search.len() <= 64);
    assert_eq!((view.key(Input::Escape, &state), places(&view).len()), (Action::Draw, 2));
    assert_eq!(view.key(Input::Escape, &state), Action::Quit);
}

/// The chosen place is described, and what it means takes the place of the lists until Esc.
#[test]
fn explanations() {
    let state = state();
    let mut view = View::default();
    assert_eq!(view.key(Input::Letter('e'), &state), Action::Explain);
    let (pid, name, about) = chosen(&state, &view).expect("a place");
    assert_eq!((pid, name.as_str()), (4711, "serve.py:15 Cache.remember"));
    assert_eq!(about[0], "serve.py:15 Cache.remember (PTA, pid 4711)");
    assert!(about[1].starts_with("128.0 MiB in 2 blocks, peak 128.0 MiB, +128.0 MiB/min, the oldest "), "{about:?}");
    view.explain(about);
    let lines = drawn(&state, &view, 80, 24);
    assert!(line(&lines, "in 2 blocks").contains("peak") && !lines.concat().contains("PLACE"), "{lines:#?}");
    assert_eq!(view.key(Input::Escape, &state), Action::Draw);
    assert!(drawn(&state, &view, 80, 24).concat().contains("PLACE"));
    assert_eq!(chosen(&State::default(), &view), None);
}

/// Without the driver's figures the driver's blocks count, and no total is made up.
#[test]
fn no_driver_figures() {
    let mut state = State::default();
    for mut moment in moments("serve.py", "serve.py") {
        moment.sample.devices = None;
        state.take(moment);
    }
    let lines = drawn(&state, &View::default(), 100, 24);
    assert_eq!(lines[1], " npu:0   1.0 GiB of the driver in use, 0/min; total unknown (doctor says why)");
}

#[test]
fn csv_lines() {
    let [_, moment] = &moments("serve.py", "serve.py")[..] else { panic!("two moments") };
    let mut text = Vec::new();
    write_csv(moment, &mut text).expect("written");
    let text = String::from_utf8(text).expect("UTF-8");
    let time_ns = START_NS + 30 * SECOND;
    let place = format!("{time_ns},4711,npu:0,PTA,place,serve.py:15 Cache.remember,134217728,2,134217728");
    assert!(text.lines().any(|line| line == place), "{text}");
    assert!(text.lines().all(|line| line.matches(',').count() == CSV_HEADER.matches(',').count()), "{text}");
}

/// What was live before the kept part comes first, and each block ends once, whatever was kept.
#[test]
fn the_last_minutes_are_a_whole_run() {
    let mut script = Script::new(4711, Device::Npu(0));
    script.alloc(pools::PTA, 0x100, 100).alloc(pools::PTA, 0x200, 200).free(pools::PTA, 0x100);
    script.alloc(pools::PTA, 0x300, 300).end(FreeCause::TraceEnd, pools::PTA, 0x300);
    let mut recent = Recent::default();
    let eleven_minutes_ns = 660 * SECOND;
    for (at, event) in script.events().iter().enumerate() {
        let mut event = event.clone();
        // The first three are older than what is kept.
        event.time_ns += if at < 3 { 0 } else { eleven_minutes_ns };
        recent.take(&event);
    }
    let seen = Mutex::new(Vec::new());
    let end = recent.replay(5, &mut |event| {
        let what = match &event.kind {
            EventKind::Alloc(alloc) => ('+', alloc.block.size_bytes, alloc.restored),
            EventKind::Free(free) => ('-', free.block.size_bytes, free.cause == FreeCause::TraceEnd),
            _ => return,
        };
        seen.lock().expect("unlocked").push(what);
    });
    assert_eq!(
        seen.into_inner().expect("unlocked"),
        [('+', 200, true), ('+', 300, false), ('-', 200, true), ('-', 300, true)]
    );
    assert_eq!((end.lost, end.start_ns), (5, end.time_ns));
}
