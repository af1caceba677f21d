//! What the user has chosen, and what keys do.

use super::state::State;
use crate::model::Pool;

/// A key, as far as the screen knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A letter or sign.
    Letter(char),
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Return.
    Enter,
    /// Backspace.
    Back,
    /// Escape.
    Escape,
    /// Tabulator.
    Tab,
}

/// What a key asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Draw again.
    Draw,
    /// Write the report of the last minutes.
    Report,
    /// Explain the chosen place by the last minutes.
    Explain,
    /// End.
    Quit,
}

/// By what places are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Growth,
    Live,
    Peak,
    Blocks,
}

impl Sort {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Growth => "growth",
            Self::Live => "live",
            Self::Peak => "peak",
            Self::Blocks => "blocks",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Growth => Self::Live,
            Self::Live => Self::Peak,
            Self::Peak => Self::Blocks,
            Self::Blocks => Self::Growth,
        }
    }
}

/// What is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub(crate) struct View {
    pub(super) sort: Sort,
    /// One process; `None`: all.
    pub(super) pid: Option<u32>,
    /// One layer; `None`: pools, and the driver where there are none.
    pub(super) layer: Option<Pool>,
    /// Line of the chosen place.
    pub(super) chosen: usize,
    /// The stack of the chosen place is shown.
    pub(super) stack: bool,
    /// Frames of frameworks are shown, too.
    pub(super) all_frames: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// Text that shown places have; empty: all.
    pub(super) search: String,
    /// Letters go to the text.
    pub(super) searches: bool,
    /// What the chosen place means, in lines; in the place of the lists.
    pub(super) explanation: Option<Vec<String>>,
    /// What became of the last key.
    pub(super) note: Option<String>,
}

/// Letters of a text to search for.
const MAX_SEARCH: usize = 64;

impl View {
    /// Whether the state stays as it is.
    pub(crate) const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Shows what became of a key.
    pub(crate) fn note(&mut self, text: String) {
        self.note = Some(text);
    }

    /// Shows what the chosen place means.
    pub(crate) fn explain(&mut self, lines: Vec<String>) {
        (self.note, self.explanation) = (None, Some(lines));
    }

    /// Takes a key.
    pub(crate) fn key(&mut self, input: Input, state: &State) -> Action {
        self.note = None;
        if self.searches {
            self.search_key(input);
            return self.redrawn(state);
        }
        match input {
            Input::Letter('q') => return Action::Quit,
            Input::Letter('r' | 'w') => return Action::Report,
            Input::Letter('e') => return Action::Explain,
            Input::Letter('/') => self.searches = true,
            Input::Escape if self.explanation.is_some() => self.explanation = None,
            Input::Escape if self.help || self.stack => (self.help, self.stack) = (false, false),
            Input::Escape if self.search.is_empty() => return Action::Quit,
            Input::Escape => self.search.clear(),
            Input::Letter('?' | 'h') => self.help = !self.help,
            Input::Letter(' ') => self.paused = !self.paused,
            Input::Letter('s') => (self.sort, self.chosen) = (self.sort.next(), 0),
            Input::Letter('f') => self.all_frames = !self.all_frames,
            Input::Letter('p') | Input::Tab => (self.pid, self.chosen) = (next(self.pid, &state.pids()), 0),
            Input::Letter('l') => (self.layer, self.chosen) = (next(self.layer, &state.pools()), 0),
            Input::Up | Input::Letter('k') => self.chosen = self.chosen.saturating_sub(1),
            Input::Down | Input::Letter('j') => self.chosen = self.chosen.saturating_add(1),
            Input::Enter if self.explanation.take().is_some() => {}
            Input::Enter => self.stack = !self.stack,
            Input::Letter(_) | Input::Back => {}
        }
        self.redrawn(state)
    }

    /// The choice stays among the places.
    fn redrawn(&mut self, state: &State) -> Action {
        let places = super::lists::places(state, self).len();
        self.chosen = self.chosen.min(places.saturating_sub(1));
        Action::Draw
    }

    /// A key while the text to search for is typed.
    fn search_key(&mut self, input: Input) {
        match input {
            Input::Letter(letter) if self.search.chars().count() < MAX_SEARCH => self.search.push(letter),
            Input::Back => drop(self.search.pop()),
            Input::Enter => self.searches = false,
            Input::Escape => (self.searches, self.search) = (false, String::new()),
            _ => {}
        }
        self.chosen = 0;
    }
}

/// All, then one after the other, then all again.
fn next<T: Copy + PartialEq>(chosen: Option<T>, all: &[T]) -> Option<T> {
    match chosen {
        None => all.first().copied(),
        Some(chosen) => {
            let at = all.iter().position(|it| *it == chosen)?;
            all.get(at + 1).copied()
        }
    }
}
