//! Which analyses see which events of a run, and of an exit.

use std::borrow::Cow;

use super::super::{
    Analysis,
    named::Final,
    select::{Filter, Selected, Selection},
};
use crate::model::{Event, EventKind, Free, FreeCause, UnknownFree};

/// The readers of a driver block's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// All.
    All,
    /// Those that count the blocks of a pool instead of its segments.
    WithoutSegments,
    /// Those that see segments, too.
    WithSegments,
}

/// An event on its way.
#[derive(Clone, Debug)]
pub(super) struct Seen<'a> {
    pub(super) event: Cow<'a, Event>,
    pub(super) sight: Sight,
    /// The final owner of the block that ends with it, where owners are named.
    pub(super) owner: Option<Final>,
}

/// How an event of an exit is seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfExit {
    /// When the exit began, nanoseconds since the Unix epoch.
    pub(super) until_ns: u64,
    /// It is of a block that the exit itself allocated.
    pub(super) own: bool,
}

/// The analyses inside, by the events they see.
#[derive(Default)]
pub(super) struct Readers {
    /// Each byte once, and memory that the exit freed counts as held.
    pub(super) leaks: Vec<Box<dyn Analysis>>,
    /// Everything, and which frees are of the exit.
    pub(super) marked: Vec<Box<dyn Analysis>>,
    /// Everything up to the exit.
    pub(super) frozen: Vec<Box<dyn Analysis>>,
}

impl Seen<'_> {
    pub(super) fn keep(&self) -> Seen<'static> {
        Seen { event: Cow::Owned(self.event.clone().into_owned()), ..*self }
    }

    /// Whether it counts where each byte counts once.
    pub(super) fn counts(&self) -> bool {
        self.sight != Sight::WithSegments
    }

    fn named(&self) -> Cow<'_, Event> {
        match (&self.event.kind, self.owner) {
            (EventKind::Free(free), Some(Final(owner))) => {
                Cow::Owned(Event { kind: EventKind::Free(Free { owner, ..*free }), ..(*self.event).clone() })
            }
            _ => Cow::Borrowed(&self.event),
        }
    }
}

impl Readers {
    /// The program works.
    pub(super) fn works(&mut self, seen: &Seen<'_>) {
        if seen.counts() {
            show(&mut self.leaks, &seen.named());
        }
        if seen.sight != Sight::WithoutSegments {
            show(&mut self.marked, &seen.event);
            show(&mut self.frozen, &seen.event);
        }
    }

    /// The program exits.
    pub(super) fn exits(&mut self, seen: &Seen<'_>, of: OfExit) {
        // Frees of blocks older than the trace replace nothing in an exit.
        if seen.counts() && !is_older_free(&seen.event.kind) {
            show(&mut self.leaks, &held(Event { time_ns: of.until_ns, ..seen.named().into_owned() }, of.own));
        }
        if seen.sight == Sight::WithoutSegments {
            return;
        }
        show(&mut self.marked, &held((*seen.event).clone(), of.own));
        if !is_memory_of_exit(&seen.event.kind, of.own) {
            show(&mut self.frozen, &held(Event { time_ns: of.until_ns, ..(*seen.event).clone() }, of.own));
        }
    }

    /// The process ends, `until_ns` if it is judged up to then.
    pub(super) fn ends(&mut self, end: &Event, until_ns: Option<u64>) {
        let judged = Event { time_ns: until_ns.unwrap_or(end.time_ns), ..end.clone() };
        show(&mut self.leaks, &judged);
        show(&mut self.marked, end);
        show(&mut self.frozen, &judged);
    }

    /// Shows the analyses the chosen blocks alone.
    pub(super) fn choose(&mut self, filter: &Filter) {
        let selection = Selection { filter: filter.clone(), ..Selection::default() };
        for group in [&mut self.leaks, &mut self.marked, &mut self.frozen] {
            let (chosen, _) = Selected::new(&selection, std::mem::take(group), Vec::new());
            group.push(Box::new(chosen));
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Box<dyn Analysis>> {
        self.leaks.iter().chain(&self.marked).chain(&self.frozen)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Analysis>> {
        self.leaks.iter_mut().chain(&mut self.marked).chain(&mut self.frozen)
    }
}

fn show(analyses: &mut [Box<dyn Analysis>], event: &Event) {
    for analysis in analyses {
        analysis.observe(event);
    }
}

/// Older blocks that the exit frees were held.
fn held(mut event: Event, own: bool) -> Event {
    if let EventKind::Free(free) = &mut event.kind
        && free.cause == FreeCause::Program
        && !own
    {
        free.cause = FreeCause::Exit;
    }
    event
}

/// Whether it changes memory other than by ending a block that was held when the exit began.
const fn is_memory_of_exit(kind: &EventKind, own: bool) -> bool {
    match kind {
        EventKind::Free(_) => own,
        EventKind::Alloc(_) | EventKind::UnknownFree(_) | EventKind::BlockReturned(_) | EventKind::Region(_) => true,
        _ => false,
    }
}

/// Whether the program freed a block older than the trace.
pub(super) const fn is_older_free(kind: &EventKind) -> bool {
    matches!(kind, EventKind::UnknownFree(UnknownFree { maybe_older: true, refused: false, .. }))
}
