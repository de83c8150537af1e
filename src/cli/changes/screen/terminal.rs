//! The terminal itself: taken over and given back, whatever happens in between.

use std::{
    io::{self, Write},
    panic,
    sync::atomic::{AtomicBool, Ordering},
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, MoveTo, Show},
        event::{DisableBracketedPaste, EnableBracketedPaste},
        execute,
        style::ResetColor,
        terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};

/// Whether the terminal is ours just now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back, once; a terminal that is gone needs nothing.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), DisableBracketedPaste, ResetColor, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}

/// A terminal that is taken over; given back when this is dropped, and by a panic before its message.
pub struct Screen {
    pub terminal: Terminal<CrosstermBackend<io::Stdout>>,
}

impl Screen {
    /// # Errors
    /// The terminal cannot be switched.
    pub fn take() -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
        enter()?;
        Ok(Self { terminal: Terminal::new(CrosstermBackend::new(io::stdout()))? })
    }

    /// Gives it back for a while: for an editor, or while stopped.
    pub fn leave(&mut self) {
        give_back();
    }

    /// Takes it again, and draws all of it anew.
    ///
    /// # Errors
    /// The terminal cannot be switched.
    pub fn back(&mut self) -> io::Result<()> {
        give_back();
        enter()?;
        self.anew()
    }

    /// Draws all of it anew next time, whatever is on the screen.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub fn anew(&mut self) -> io::Result<()> {
        // `Terminal::clear` would ask the terminal where its cursor is, and wait for an answer among the keys.
        execute!(io::stdout(), ResetColor, Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Hide, Clear(ClearType::All), MoveTo(0, 0))
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}
