//! A raw HTTP/2 client: frames as bytes over openssl's TLS.

/// An HTTP/2 connection over openssl's TLS that can send what no well-behaved client does.
pub struct Http2 {
    pub openssl: support::Process,
    input: std::process::ChildStdin,
    received: std::process::ChildStdout,
}

pub struct Frame {
    pub kind: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Http2 {
    /// Connects, and sends the preface and empty settings.
    pub fn connect(tls: &support::tls::TlsGateway) -> Self {
        let address = tls.base.trim_start_matches("https://");
        let mut openssl = std::process::Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_quiet", "-alpn", "h2", "-CAfile"])
            .arg(&tls.cert)
            .args(["-connect", address])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let (input, received) = (openssl.stdin.take().unwrap(), openssl.stdout.take().unwrap());
        let mut conn = Self { openssl: support::Process(openssl), input, received };
        conn.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        conn.frame(4, 0, 0, &[]);
        conn
    }

    pub fn send(&mut self, bytes: &[u8]) {
        std::io::Write::write_all(&mut self.input, bytes).unwrap();
        std::io::Write::flush(&mut self.input).unwrap();
    }

    /// Sends bytes; returns `false` if the connection has ended.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        std::io::Write::write_all(&mut self.input, bytes).is_ok()
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.send(&frame(kind, flags, stream, payload));
    }

    /// Opens a stream with a POST whose body follows later.
    pub fn post(&mut self, stream: u32, authority: &str) {
        self.post_with(stream, authority, &[]);
    }

    /// Opens a stream like [`Self::post`] with extra headers.
    pub fn post_with(&mut self, stream: u32, authority: &str, more: &[(&str, &str)]) {
        self.send(&post(stream, authority, more));
    }

    /// Opens a stream.
    pub fn headers(&mut self, stream: u32, flags: u8, headers: &[(&str, &str)]) {
        self.send(&headers_frame(stream, flags, headers));
    }

    /// Reads and discards everything.
    pub fn forget_answers(&self) {
        let answers = std::os::fd::AsFd::as_fd(&self.received).try_clone_to_owned().unwrap();
        std::thread::spawn(move || std::io::copy(&mut std::fs::File::from(answers), &mut std::io::sink()));
    }

    pub fn receive(&mut self) -> Frame {
        let mut head = [0; 9];
        std::io::Read::read_exact(&mut self.received, &mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        std::io::Read::read_exact(&mut self.received, &mut payload).unwrap();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Frame { kind: head[3], stream, payload }
    }

    /// Waits for the server's reset of a stream, and returns its error code.
    pub fn reset(&mut self, stream: u32) -> [u8; 4] {
        loop {
            let frame = self.receive();
            if (frame.kind, frame.stream) == (3, stream) {
                return *frame.payload.first_chunk().unwrap();
            }
        }
    }

    /// Returns the first data on a stream.
    pub fn data(&mut self, stream: u32) -> String {
        loop {
            let frame = self.receive();
            if (frame.kind, frame.stream) == (0, stream) {
                return String::from_utf8(frame.payload).unwrap();
            }
            assert!(frame.kind != 0 || frame.payload.is_empty(), "{}", String::from_utf8_lossy(&frame.payload));
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the frame that opens a stream.
fn headers_frame(stream: u32, flags: u8, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [(":scheme", "https")].iter().chain(headers) {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(1, flags, stream, &block)
}

/// Returns the beginning of a POST with extra headers whose body follows later.
pub fn post(stream: u32, authority: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let all = [
        (":method", "POST"),
        (":path", "/mcp"),
        (":authority", authority),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    headers_frame(stream, 4, &[&all, more].concat())
}

/// Returns so many equal frames.
pub fn frames(count: usize, (kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(kind, flags, stream, payload).repeat(count)
}
