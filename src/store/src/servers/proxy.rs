//! Between a gateway and the server of its tests: what ends connections, or lets nothing pass.
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
/// The connection ends instead of the next commit, or of what [`Proxy::set_at`] names.
pub const LOSE: u8 = 1;
/// The connection ends instead of the answer to that.
pub const DECEIVE: u8 = 2;
/// Connections end before the next audit entries.
pub const CUT: u8 = 3;
/// There are no connections.
pub const CLOSED: u8 = 4;
/// Nothing passes, and no connection ends.
pub const SILENT: u8 = 5;
/// That passes later than the server lets a transaction stand still.
pub const LATE: u8 = 6;

/// See the module.
pub struct Proxy {
    pub url: String,
    told: Told,
}

#[derive(Clone)]
struct Told {
    mode: Arc<AtomicU8>,
    /// What is lost.
    word: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    /// To the database of that address.
    #[must_use]
    pub fn to(url: &str) -> Self {
        let (_, rest) = url.split_once('@').unwrap();
        let (folder, database) = rest.split_once('/').unwrap();
        let socket = PathBuf::from(folder.replace("%2F", "/")).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://countersign@{}/{database}", listener.local_addr().unwrap());
        let told = Told { mode: Arc::new(AtomicU8::new(PASS)), word: Arc::default() };
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

    /// What it does from now on: [`PASS`] to begin with.
    pub fn set(&self, mode: u8) {
        self.set_at(mode, "COMMIT");
    }

    /// As [`Self::set`], where it is about what is sent with that in it.
    pub fn set_at(&self, mode: u8, word: impl AsRef<[u8]>) {
        *self.told.word.lock().unwrap() = word.as_ref().to_vec();
        self.told.mode.store(mode, Ordering::SeqCst);
    }

    /// What it does now.
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

fn forth(mut client: TcpStream, mut server: UnixStream, Told { mode, word }: &Told, deaf: &AtomicBool) {
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
        if lost || (now == CUT && holds(b"sha256")) {
            mode.store(PASS, Ordering::SeqCst);
            if now == DECEIVE {
                deaf.store(true, Ordering::SeqCst);
                server.write_all(&buffer[..n]).unwrap();
                // It is durable before the connection ends.
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
