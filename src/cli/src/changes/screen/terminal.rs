//! Takes over the terminal and restores it, whatever happens in between.

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

/// Set while this program has taken over the terminal.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal once. Errors are ignored, because a terminal that is gone needs no restoring.
fn restore() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), DisableBracketedPaste, ResetColor, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
        let _ = io::stdout().flush();
    }
}

/// A terminal that was taken over, restored on drop and by a panic before its message.
pub struct Screen {
    pub terminal: Terminal<CrosstermBackend<io::Stdout>>,
}

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// Fails if the terminal cannot be switched.
    pub fn new() -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        let terminal = enter_raw_mode().and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        // A terminal that was switched only in part must be restored.
        terminal.inspect_err(|_| restore()).map(|terminal| Self { terminal })
    }

    /// Restores the terminal for a while: for an editor, or while stopped.
    pub fn suspend(&mut self) {
        restore();
    }

    /// Takes over the terminal again, and redraws everything.
    ///
    /// # Errors
    /// Fails if the terminal cannot be switched.
    pub fn resume(&mut self) -> io::Result<()> {
        restore();
        enter_raw_mode()?;
        self.redraw()
    }

    /// Clears the screen, so that the next draw writes every cell.
    ///
    /// # Errors
    /// Fails if the terminal cannot be written to.
    pub fn redraw(&mut self) -> io::Result<()> {
        // `Terminal::clear` would ask the terminal for its cursor position, and wait for the answer among the keys.
        execute!(io::stdout(), ResetColor, Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

fn enter_raw_mode() -> io::Result<()> {
    enable_raw_mode()?;
    IS_TAKEN.store(true, Ordering::SeqCst);
    execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Hide, Clear(ClearType::All), MoveTo(0, 0))
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
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

    const CHILD: &str = "changes::screen::terminal::tests::child_panics_while_screen_is_taken";

    /// Runs as the child of the test below, in a terminal of its own.
    #[test]
    #[ignore = "started by another test, in a terminal"]
    fn child_panics_while_screen_is_taken() {
        let screen = Screen::new().unwrap();
        assert!(IS_TAKEN.load(Ordering::SeqCst));
        if screen.terminal.size().is_ok() {
            panic!("on purpose");
        }
    }

    #[test]
    fn panic_restores_terminal_before_its_message() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let terminal = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("TERM", "xterm")
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal())
            .spawn()
            .unwrap();
        let reader = std::thread::spawn(move || {
            let (mut output, mut buffer, mut master) = (Vec::new(), [0; 4096], File::from(master));
            while !String::from_utf8_lossy(&output).contains("test result") {
                match master.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => output.extend_from_slice(&buffer[..count]),
                }
            }
            (String::from_utf8_lossy(&output).into_owned(), master)
        });
        assert!(!child.wait().unwrap().success());
        let modes = tcgetattr(&slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "a shell could continue");
        let (output, _master) = reader.join().unwrap();
        let position = |text: &str| output.find(text).unwrap_or_else(|| panic!("no {text:?} in {output:?}"));
        assert!(position("\u{1b}[?1049h") < position("\u{1b}[?1049l"));
        assert!(position("\u{1b}[?1049l") < position("on purpose"), "the message stays on the screen");
        assert_eq!(output.matches("\u{1b}[?1049l").count(), 1, "the screen is restored once");
    }
}
