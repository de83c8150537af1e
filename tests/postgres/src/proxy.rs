//! A proxy between a gateway and the test server, which can cut, block or refuse connections.

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

/// Everything passes.
pub const PASS: u8 = 0;
/// The connection is cut before the next commit, or before a message with the text of [`Proxy::set_for_text`], reaches
/// the server.
pub const CUT_BEFORE_MESSAGE: u8 = 1;
/// The connection is cut after the server has received the message, before the client gets the answer.
pub const CUT_BEFORE_ANSWER: u8 = 2;
/// The connection is cut before the next audit entries reach the server.
pub const CUT_BEFORE_AUDIT: u8 = 3;
/// All connections are refused.
pub const REFUSE: u8 = 4;
/// Nothing passes, but no connection ends.
pub const SILENT: u8 = 5;
/// The message is delayed beyond the server's limit for idle transactions.
pub const DELAY_MESSAGE: u8 = 6;
/// The message is dropped, and its connection stays open without an answer.
pub const DROP_MESSAGE: u8 = 7;

/// A proxy to one database.
pub struct Proxy {
    pub url: String,
    control: ProxyControl,
}

#[derive(Clone)]
struct ProxyControl {
    mode: Arc<AtomicU8>,
    /// The text that the affected message contains.
    text: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    /// Starts a proxy to the database at the address.
    pub fn for_database(url: &str) -> Self {
        let (_, rest) = url.split_once('@').unwrap();
        let (folder, database) = rest.split_once('/').unwrap();
        let socket = PathBuf::from(folder.replace("%2F", "/")).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://countersign@{}/{database}", listener.local_addr().unwrap());
        let control = ProxyControl { mode: Arc::new(AtomicU8::new(PASS)), text: Arc::default() };
        let shared_control = control.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, control) = (UnixStream::connect(&socket).unwrap(), shared_control.clone());
                if control.mode.load(Ordering::SeqCst) != REFUSE {
                    let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                    let answers = Arc::new(Answers::default());
                    let answers_of_server = Arc::clone(&answers);
                    std::thread::spawn(move || copy_to_client(from, to, &answers_of_server));
                    std::thread::spawn(move || copy_to_server(client, server, &control, &answers));
                }
            }
        });
        Self { url, control }
    }

    /// Sets the mode for commits. The initial mode is [`PASS`].
    pub fn set(&self, mode: u8) {
        self.set_for_text(mode, "COMMIT");
    }

    /// Sets the mode for messages that contain the text.
    pub fn set_for_text(&self, mode: u8, text: impl AsRef<[u8]>) {
        *self.control.text.lock().unwrap() = text.as_ref().to_vec();
        self.control.mode.store(mode, Ordering::SeqCst);
    }

    /// Returns the current mode.
    pub fn mode(&self) -> u8 {
        self.control.mode.load(Ordering::SeqCst)
    }
}

/// The server's answers on one connection.
#[derive(Default)]
struct Answers {
    are_dropped: AtomicBool,
    /// `true` once one that is dropped has arrived, or the server has ended the connection.
    has_arrived: AtomicBool,
}

fn copy_to_client(mut server: UnixStream, mut client: TcpStream, answers: &Answers) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n) = server.read(&mut buffer)
        && n > 0
    {
        if answers.are_dropped.load(Ordering::SeqCst) {
            answers.has_arrived.store(true, Ordering::SeqCst);
        } else if client.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    answers.has_arrived.store(true, Ordering::SeqCst);
    let _ = client.shutdown(Shutdown::Both);
}

fn copy_to_server(
    mut client: TcpStream,
    mut server: UnixStream,
    ProxyControl { mode, text }: &ProxyControl,
    answers: &Answers,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n) = client.read(&mut buffer)
        && n > 0
    {
        let contains = |text: &[u8]| buffer[..n].windows(text.len()).any(|part| part == text);
        while mode.load(Ordering::SeqCst) == SILENT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let now = mode.load(Ordering::SeqCst);
        if now == REFUSE {
            break;
        }
        let is_cut = (now == CUT_BEFORE_MESSAGE || now == CUT_BEFORE_ANSWER) && contains(&text.lock().unwrap());
        if is_cut || (now == CUT_BEFORE_AUDIT && contains(b"sha256")) {
            mode.store(PASS, Ordering::SeqCst);
            if now == CUT_BEFORE_ANSWER {
                answers.are_dropped.store(true, Ordering::SeqCst);
                server.write_all(&buffer[..n]).unwrap();
                // Once it is answered, the write is durable.
                while !answers.has_arrived.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            break;
        }
        if now == DROP_MESSAGE && contains(&text.lock().unwrap()) {
            mode.store(PASS, Ordering::SeqCst);
            while client.read(&mut buffer).is_ok_and(|n| n > 0) {}
            break;
        }
        if now == DELAY_MESSAGE && contains(&text.lock().unwrap()) {
            mode.store(PASS, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(4));
        }
        if server.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}
