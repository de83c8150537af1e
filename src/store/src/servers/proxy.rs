//! A proxy between a gateway and the tests' server, which ends connections or blocks them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "it is only built for tests")]

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

pub const PASS: u8 = 0;
/// The connection ends before the next commit, or before a message with the text of [`Proxy::set_at`].
pub const LOSE: u8 = 1;
/// The connection ends after that message, before its answer.
pub const DECEIVE: u8 = 2;
/// Connections end before the next audit entries.
pub const CUT_BEFORE_AUDIT: u8 = 3;
/// All connections are refused.
pub const CLOSED: u8 = 4;
/// Nothing passes, but no connection ends.
pub const SILENT: u8 = 5;
/// That message passes later than the server's limit for idle transactions.
pub const LATE: u8 = 6;

/// A proxy to one database.
pub struct Proxy {
    pub url: String,
    told: ProxyMode,
}

#[derive(Clone)]
struct ProxyMode {
    mode: Arc<AtomicU8>,
    /// The text in the affected message.
    word: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    /// Starts a proxy to the database at the address.
    #[must_use]
    pub fn to(url: &str) -> Self {
        let (_, rest) = url.split_once('@').unwrap();
        let (folder, database) = rest.split_once('/').unwrap();
        let socket = PathBuf::from(folder.replace("%2F", "/")).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://countersign@{}/{database}", listener.local_addr().unwrap());
        let told = ProxyMode { mode: Arc::new(AtomicU8::new(PASS)), word: Arc::default() };
        let all = told.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, told) = (UnixStream::connect(&socket).unwrap(), all.clone());
                if told.mode.load(Ordering::SeqCst) != CLOSED {
                    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    let deaf = Arc::new(AtomicBool::new(false));
                    let beside = Arc::clone(&deaf);
                    std::thread::spawn(move || back(from, to, &beside));
                    std::thread::spawn(move || forth(client, server, &told, &deaf));
                }
            }
        });
        Self { url, told }
    }

    /// Sets the mode, which is [`PASS`] at first, for commits.
    pub fn set(&self, mode: u8) {
        self.set_at(mode, "COMMIT");
    }

    /// Sets the mode for messages with that text.
    pub fn set_at(&self, mode: u8, word: impl AsRef<[u8]>) {
        *self.told.word.lock().unwrap() = word.as_ref().to_vec();
        self.told.mode.store(mode, Ordering::SeqCst);
    }

    /// Returns the present mode.
    #[must_use]
    pub fn mode(&self) -> u8 {
        self.told.mode.load(Ordering::SeqCst)
    }
}

fn back(mut server: UnixStream, mut client: TcpStream, deaf: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n) = server.read(&mut buffer)
        && n > 0
        && (deaf.load(Ordering::SeqCst) || client.write_all(&buffer[..n]).is_ok())
    {}
    let _ = client.shutdown(Shutdown::Both);
}

fn forth(mut client: TcpStream, mut server: UnixStream, ProxyMode { mode, word }: &ProxyMode, deaf: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n) = client.read(&mut buffer)
        && n > 0
    {
        let holds = |word: &[u8]| buffer[..n].windows(word.len()).any(|part| part == word);
        while mode.load(Ordering::SeqCst) == SILENT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let now = mode.load(Ordering::SeqCst);
        if now == CLOSED {
            break;
        }
        let lost = (now == LOSE || now == DECEIVE) && holds(&word.lock().unwrap());
        if lost || (now == CUT_BEFORE_AUDIT && holds(b"sha256")) {
            mode.store(PASS, Ordering::SeqCst);
            if now == DECEIVE {
                deaf.store(true, Ordering::SeqCst);
                server.write_all(&buffer[..n]).unwrap();
                // The write is durable before the connection ends.
                std::thread::sleep(Duration::from_millis(100));
            }
            break;
        }
        if now == LATE && holds(&word.lock().unwrap()) {
            mode.store(PASS, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(4));
        }
        if server.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}
