//! A cheap WebSocket client: frames are prepared bytes.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub struct Ws {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

/// Returns a masked frame; the mask is zero, so the payload is unchanged.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | opcode];
    match u16::try_from(payload.len()) {
        Ok(length @ 0..=125) => bytes.push(0x80 | length.to_be_bytes()[1]),
        Ok(length) => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
        Err(_) => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns a request as a frame.
pub fn request(method: &str, params: &Value) -> Vec<u8> {
    frame(1, json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().as_bytes())
}

impl Ws {
    /// Connects and opens a handshake session. `from` is the source address, since one has a limited number of ports.
    pub async fn open(port: u16, from: std::net::Ipv4Addr) -> Result<Self> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(([127, 0, 0, 1], port).into()).await?;
        stream.set_nodelay(true)?;
        let mut ws = Self { stream, buffer: vec![0; 4 << 10], filled: 0 };
        let upgrade = format!(
            "GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: mcp\r\n\r\n"
        );
        ws.stream.write_all(upgrade.as_bytes()).await?;
        loop {
            ws.fill().await?;
            if let Some(end) = ws.buffer[..ws.filled].windows(4).position(|four| four == b"\r\n\r\n") {
                if !ws.buffer.starts_with(b"HTTP/1.1 101") {
                    bail!("no upgrade: {}", String::from_utf8_lossy(&ws.buffer[..end]));
                }
                ws.take(end + 4);
                break;
            }
        }
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}});
        ws.exchange(&request("initialize", &params)).await?;
        ws.stream.write_all(&frame(1, br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)).await?;
        Ok(ws)
    }

    async fn fill(&mut self) -> Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.filled..]).await? {
            0 => bail!("the server has closed the socket"),
            read => self.filled += read,
        }
        Ok(())
    }

    fn take(&mut self, count: usize) {
        self.buffer.copy_within(count..self.filled, 0);
        self.filled -= count;
    }

    /// Sends a frame and reads up to the next text frame; answers pings. Returns the payload's length.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<usize> {
        self.stream.write_all(request).await?;
        Ok(self.text().await?.len())
    }

    /// Returns the next text frame's payload.
    pub async fn text(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some((opcode, start, end)) = parse(&self.buffer[..self.filled]) {
                let payload = self.buffer[start..end].to_vec();
                self.take(end);
                match opcode {
                    1 => return Ok(payload),
                    9 => self.stream.write_all(&frame(10, &payload)).await?,
                    8 => bail!("the server closes: {}", String::from_utf8_lossy(&payload)),
                    _ => {}
                }
            } else {
                self.fill().await?;
            }
        }
    }
}

/// Returns the first complete frame: its opcode, and the range of its payload.
fn parse(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let (start, length) = match *bytes.get(1)? {
        126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?),
        length => (2, usize::from(length)),
    };
    (bytes.len() >= start + length).then_some((bytes[0] & 0x0f, start, start + length))
}
