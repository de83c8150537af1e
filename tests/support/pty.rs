//! A program in a pseudo-terminal, with its screen.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use super::cli::MAX_WAIT;

pub struct Pty {
    master: File,
    slave: File,
    pub child: Child,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    /// Runs the command in a new terminal.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // The terminal becomes the controlling one, which sends signals.
        let mut whole = Command::new("/usr/bin/setsid");
        whole.arg("--ctty").arg(command.get_program()).args(command.get_args()).env_clear();
        whole.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        for (name, value) in [("TERM", "xterm-256color"), ("LANG", "C.UTF-8")] {
            if !command.get_envs().any(|(other, _)| other == name) {
                whole.env(name, value);
            }
        }
        whole.current_dir(command.get_current_dir().unwrap());
        let end = || slave.try_clone().unwrap();
        let child = whole.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let shared_output = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, notes) = (File::from(master.try_clone().unwrap()), Arc::clone(&shared_output));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(many) = reader.read(&mut buffer) {
                if many == 0 {
                    return;
                }
                notes.lock().unwrap().extend_from_slice(&buffer[..many]);
            }
        });
        Self { master: master.into(), slave, child, output: shared_output }
    }

    pub fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    /// Returns the raw output so far.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Returns `true` if the terminal echoes and edits lines, as a shell expects.
    pub fn is_cooked(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    #[track_caller]
    pub fn wait_for_screen(&mut self, what: &str, done: impl Fn(&str) -> bool) {
        if !self.reaches_screen_within(MAX_WAIT, done) {
            panic!("in vain: {what}\n{}", screen(&self.raw()));
        }
    }

    /// Returns `true` as soon as the screen contains the text, or `false` after the time limit.
    pub fn shows_within(&self, limit: Duration, text: &str) -> bool {
        self.reaches_screen_within(limit, |screen| screen.contains(text))
    }

    fn reaches_screen_within(&self, limit: Duration, done: impl Fn(&str) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if done(&screen(&self.raw())) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn wait_for_text(&mut self, what: &str) {
        self.wait_for_screen(what, |screen| screen.contains(what));
    }

    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the text that a terminal would show: follows cursor movements and clearing, and ignores styles.
fn screen(raw: &str) -> String {
    let mut rows = vec![vec![' '; 300]; 100];
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next() != Some('[') {
                    continue;
                }
                let mut arguments = String::new();
                let end = chars.by_ref().find(|c| {
                    let last = c.is_ascii_alphabetic();
                    if !last {
                        arguments.push(*c);
                    }
                    last
                });
                let numbers: Vec<usize> = arguments.split(';').map(|n| n.parse().unwrap_or(1)).collect();
                match end {
                    Some('H') => {
                        row = numbers[0] - 1;
                        column = numbers.get(1).copied().unwrap_or(1) - 1;
                    }
                    Some('J') => rows.iter_mut().for_each(|row| row.fill(' ')),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            c => {
                if let Some(cell) = rows.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = c;
                }
                column += 1;
            }
        }
    }
    let lines = rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
