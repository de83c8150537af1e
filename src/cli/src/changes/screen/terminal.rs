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
        let taken = enter().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        // Half taken over is worse than not at all.
        taken.inspect_err(|_| give_back()).map(|terminal| Self { terminal })
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

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read,
        os::fd::OwnedFd,
        process::{Command, Stdio},
    };

    use rustix::{
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::{LocalModes, tcgetattr},
    };

    use super::*;

    const CHILD: &str = "changes::screen::terminal::tests::somebody_panics_on_the_screen";

    /// What the test below starts in a terminal of its own.
    #[test]
    #[ignore = "started by another test, in a terminal"]
    fn somebody_panics_on_the_screen() {
        let screen = Screen::take().unwrap();
        assert!(TAKEN.load(Ordering::SeqCst));
        if screen.terminal.size().is_ok() {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_says_anything() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let reader = std::thread::spawn(move || {
            let (mut said, mut buffer, mut master) = (Vec::new(), [0; 4096], File::from(master));
            while !String::from_utf8_lossy(&said).contains("test result") {
                match master.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(many) => said.extend_from_slice(&buffer[..many]),
                }
            }
            (String::from_utf8_lossy(&said).into_owned(), master)
        });
        assert!(!child.wait().unwrap().success());
        let modes = tcgetattr(&slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "a shell could go on");
        let (said, _master) = reader.join().unwrap();
        let place = |what: &str| said.find(what).unwrap_or_else(|| panic!("no {what:?} in {said:?}"));
        assert!(place("\u{1b}[?1049h") < place("\u{1b}[?1049l"));
        assert!(place("\u{1b}[?1049l") < place("on purpose"), "the message stays on the screen");
        assert_eq!(said.matches("\u{1b}[?1049l").count(), 1, "once");
    }
}
