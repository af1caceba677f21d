//! The terminal while it is a screen. It is given back as it was: at the end, after errors, and before a panic is reported.

use std::{
    io::{self, IsTerminal as _, Stdout},
    panic,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ratatui::{
    backend::CrosstermBackend,
    buffer::Buffer,
    crossterm::{
        cursor::{Hide, Show},
        event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
    layout::Rect,
};

use crate::{
    cli::terminal,
    top::{self, Input, State, View},
};

/// The terminal is a screen now.
static IS_SCREEN: AtomicBool = AtomicBool::new(false);

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Key {
    /// One that the screen knows.
    Input(Input),
    /// Ctrl-C, which is a key here and no signal.
    Interrupt,
}

/// A screen; dropping it gives the terminal back.
#[derive(Debug)]
pub(in crate::cli) struct Terminal(ratatui::Terminal<CrosstermBackend<Stdout>>);

/// Whether stdin is a terminal, so that keys can be pressed.
pub(in crate::cli) fn has_keys() -> bool {
    io::stdin().is_terminal()
}

impl Terminal {
    /// Makes the terminal a screen.
    pub(in crate::cli) fn open() -> io::Result<Self> {
        give_back_before_panics();
        IS_SCREEN.store(true, Ordering::SeqCst);
        let begin = || {
            enable_raw_mode()?;
            execute!(terminal::screen(), EnterAlternateScreen, Hide)?;
            ratatui::Terminal::new(CrosstermBackend::new(terminal::screen()))
        };
        begin().map(Self).inspect_err(|_| give_back())
    }

    /// Draws what has changed.
    pub(super) fn draw(&mut self, state: &State, view: &View) -> io::Result<()> {
        self.draw_by(|area, buffer| top::draw(state, view, area, buffer))
    }

    /// The same of another screen.
    pub(in crate::cli) fn draw_by(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.0.draw(|frame| draw(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }

    /// Waits for a key, at most this long. Another size of the screen ends the wait, too.
    pub(in crate::cli) fn key(time: Duration) -> io::Result<Option<Key>> {
        if !event::poll(time)? {
            return Ok(None);
        }
        let Event::Key(key) = event::read()? else { return Ok(None) };
        if key.kind == KeyEventKind::Release {
            return Ok(None);
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return Ok((key.code == KeyCode::Char('c')).then_some(Key::Interrupt));
        }
        Ok(input(key.code).map(Key::Input))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn input(code: KeyCode) -> Option<Input> {
    match code {
        KeyCode::Char(letter) => Some(Input::Letter(letter)),
        KeyCode::F(1) => Some(Input::Letter('?')),
        KeyCode::Up => Some(Input::Up),
        KeyCode::Down => Some(Input::Down),
        KeyCode::Enter => Some(Input::Enter),
        KeyCode::Backspace => Some(Input::Back),
        KeyCode::Esc => Some(Input::Escape),
        KeyCode::Tab => Some(Input::Tab),
        _ => None,
    }
}

/// A panic of any thread is reported on the terminal as it was, not on a screen that is gone at once.
fn give_back_before_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        give_back();
        report(panic);
    }));
}

fn give_back() {
    if IS_SCREEN.swap(false, Ordering::SeqCst) {
        // A terminal that is gone needs nothing.
        let _ = execute!(terminal::screen(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}
