//! A minimal HTTP server for the upstream and the webhook receiver.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
};

/// The answer to a request: a status and a body, or `None` to hang up.
pub type Reaction = Option<(u16, String)>;

/// Serves on a loopback port for as long as the process lives; returns the port. `react` gets the request line and the
/// body.
pub fn serve(react: impl Fn(&str, &str) -> Reaction + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let react = Arc::new(react);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let react = Arc::clone(&react);
            std::thread::spawn(move || connection(stream, &*react));
        }
    });
    port
}

fn connection(mut stream: TcpStream, react: &dyn Fn(&str, &str) -> Reaction) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some((line, body)) = read(&mut reader) {
        let Some((status, body)) = react(&line, &body) else { return };
        let head =
            format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads the request line and the body.
fn read(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut length = 0;
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field).ok()? == 0 {
            return None;
        }
        if field.trim().is_empty() {
            break;
        }
        if let Some(value) = field.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((line, String::from_utf8(body).ok()?))
}
