//! A proxy between a node and the store's server, which can cut, silence or delay connections.

use std::{
    io::Write as _,
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const MODE_PASS: u64 = 0;
const MODE_SILENT: u64 = u64::MAX;
const MODE_CLOSED: u64 = u64::MAX - 1;

pub struct Proxy {
    pub port: u16,
    /// One of the modes above, or a delay in milliseconds.
    mode: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<(TcpStream, UnixStream)>>>,
}

impl Proxy {
    /// Starts a proxy to the server with its socket in that folder.
    pub fn to_server(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, open) = (Arc::new(AtomicU64::new(MODE_PASS)), Arc::new(Mutex::new(Vec::new())));
        let (current_mode, connections, socket) = (Arc::clone(&mode), Arc::clone(&open), folder.join(".s.PGSQL.5432"));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if current_mode.load(Ordering::SeqCst) != MODE_CLOSED {
                    let _ = join(client, &socket, &current_mode, &connections);
                }
            }
        });
        Self { port, mode, open }
    }

    pub fn pass(&self) {
        self.mode.store(MODE_PASS, Ordering::SeqCst);
    }

    /// Ends all connections, and accepts no new ones.
    pub fn cut(&self) {
        self.mode.store(MODE_CLOSED, Ordering::SeqCst);
        for (client, server) in self.open.lock().unwrap().drain(..) {
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        }
    }

    /// Lets nothing pass, and ends nothing.
    pub fn silence(&self) {
        self.mode.store(MODE_SILENT, Ordering::SeqCst);
    }

    pub fn delay(&self, milliseconds: u64) {
        self.mode.store(milliseconds.clamp(1, 10_000), Ordering::SeqCst);
    }
}

type Open = Mutex<Vec<(TcpStream, UnixStream)>>;

fn join(client: TcpStream, socket: &PathBuf, mode: &Arc<AtomicU64>, open: &Open) -> std::io::Result<()> {
    let server = UnixStream::connect(socket)?;
    client.set_nodelay(true)?;
    open.lock().unwrap().push((client.try_clone()?, server.try_clone()?));
    let (from_client, to_server, mode_to_server) = (client.try_clone()?, server.try_clone()?, Arc::clone(mode));
    let mode_to_client = Arc::clone(mode);
    std::thread::spawn(move || {
        pump(from_client, &to_server, &mode_to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        pump(server, &client, &mode_to_client);
        let _ = client.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn pump<R: std::io::Read, W>(mut from: R, mut to: &W, mode: &AtomicU64)
where
    for<'a> &'a W: std::io::Write,
{
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n) = from.read(&mut buffer)
        && n > 0
    {
        while mode.load(Ordering::SeqCst) == MODE_SILENT {
            std::thread::sleep(Duration::from_millis(10));
        }
        match mode.load(Ordering::SeqCst) {
            MODE_CLOSED => return,
            MODE_PASS => {}
            delay => std::thread::sleep(Duration::from_millis(delay)),
        }
        if to.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}
