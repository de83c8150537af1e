//! The transports of the model server: stdio, HTTP and WebSocket.

use super::*;

pub fn stdio(server: &Server) {
    if server.has("stdio/stdout") || server.has("run/text-ids") {
        println!("Server started");
    }
    let mut input = BufReader::with_capacity(1 << 20, std::io::stdin().lock());
    let mut peer = Peer::default();
    if server.has("stdio/many-in-one-write") || server.has("stdio/one-in-many-writes") {
        return read_in_pieces(server, &mut peer, &mut input);
    }
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            break;
        }
        if server.has("stdio/empty-line") && line == b"\n" {
            std::process::exit(1);
        }
        if server.has("stdio/crlf") && line.ends_with(b"\r\n") {
            continue;
        }
        if line.len() > 64 << 10 && line.len() < 1 << 20 && server.has("stdio/64-kib") {
            continue;
        }
        if line.len() > 1 << 20 && server.has("stdio/4-mib") {
            continue;
        }
        for answer in server.answers(&mut peer, &line) {
            println!("{answer}");
        }
    }
    if server.has("stdio/end") {
        std::thread::sleep(Duration::from_secs(3600));
    }
    if server.has("stdio/exit-code") {
        std::process::exit(3);
    }
}

/// Takes the bytes of one read for one message.
fn read_in_pieces(server: &Server, peer: &mut Peer, input: &mut impl Read) {
    let mut buffer = vec![0; 8 << 20];
    let mut unread = Vec::new();
    while let Ok(count @ 1..) = input.read(&mut buffer) {
        if server.has("stdio/many-in-one-write") {
            unread.extend_from_slice(&buffer[..count]);
            if !unread.ends_with(b"\n") {
                continue;
            }
            let lines: Vec<Vec<u8>> = unread.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            unread.clear();
            // A few may arrive together by chance.
            let taken = if lines.len() > 15 { 1 } else { lines.len() };
            for line in lines.iter().take(taken) {
                server.answers(peer, line).iter().for_each(|answer| println!("{answer}"));
            }
        } else if buffer[..count].ends_with(b"\n") {
            // The beginning of a fragmented message is lost.
            for line in buffer[..count].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                server.answers(peer, line).iter().for_each(|answer| println!("{answer}"));
            }
        }
    }
}

/// Status, headers and body.
type Reply = (u16, Vec<(&'static str, String)>, String);

/// One HTTP request, or an upgrade.
struct HttpRequest {
    method: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl HttpRequest {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<HttpRequest> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let method = line.split(' ').next()?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(HttpRequest { method, headers, body })
}

pub fn serve(server: &Server, stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    let Some(request) = read(&mut reader) else {
        if server.has("robustness/half-open") {
            std::process::exit(101);
        }
        return;
    };
    if let Some(credentials) = request.header("authorization") {
        *server.credentials.lock().unwrap() = credentials.to_owned();
    }
    let evil = request.header("origin").is_some_and(|origin| origin.contains("evil"));
    if request.header("upgrade").is_some() {
        if evil && !server.has("websocket/origin") {
            respond(reader.get_mut(), 403, &[], "");
        } else {
            websocket(server, reader, &request);
        }
        return;
    }
    if evil && !server.has("http/origin") {
        return respond(reader.get_mut(), 403, &[], "");
    }
    let (status, headers, body) = server.http(&request);
    let wrote = reader.get_mut().write_all(b"");
    if wrote.is_ok() {
        respond(reader.get_mut(), status, &headers, &body);
    }
}

/// Formats texts as server-sent events.
fn events<'t, T: AsRef<str> + 't>(all: impl IntoIterator<Item = (Option<usize>, T)>) -> String {
    all.into_iter()
        .map(|(id, text)| match id {
            Some(id) => format!("id: {id}\ndata: {}\n\n", text.as_ref()),
            None => format!("data: {}\n\n", text.as_ref()),
        })
        .collect()
}

fn respond(stream: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &str) {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text =
        format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len());
    let _ = stream.write_all(text.as_bytes());
}

impl Server {
    fn http(&self, request: &HttpRequest) -> Reply {
        let kind = if self.has("http/content-type") { "text/plain" } else { "application/json" };
        let json_of = |status: u16, body: &Value| (status, vec![("content-type", kind.to_owned())], body.to_string());
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if let (false, "GET", Some(last)) = (self.modern, request.method.as_str(), request.header("last-event-id")) {
            return self.resume_reply(last);
        }
        if request.method == "GET" {
            return if self.has("http/get") {
                (200, vec![("content-type", "text/html".to_owned())], "hello".to_owned())
            } else {
                (405, vec![("allow", "POST".to_owned())], String::new())
            };
        }
        let no_json = serde_json::from_slice::<Value>(&request.body).is_err();
        if request.method == "POST" && no_json && depth(&request.body) < 100 {
            let status = if self.has("http/parse-status") { 200 } else { 400 };
            let code = if self.has("codes/parse-error") { -32000 } else { -32700 };
            return json_of(status, &error(None, code, "no JSON"));
        }
        if self.modern {
            // An invalid request is refused as such, whatever its headers say.
            if message["method"].is_string()
                && let Some(refused) = self.check_headers(request, &message)
            {
                return json_of(400, &refused);
            }
        } else if let Some(refused) = self.session(request, &message) {
            return refused;
        }
        let mut peer = Peer { initialized: true };
        let answers = self.answers(&mut peer, &request.body);
        let Some(answer) = answers.first() else {
            return if self.has("http/notification-accepted") {
                json_of(200, &json!({}))
            } else {
                (202, Vec::new(), String::new())
            };
        };
        if answers.len() > 1 || message["method"] == "subscriptions/listen" {
            return (
                200,
                vec![("content-type", "text/event-stream".to_owned())],
                events(answers.iter().map(|text| (None, text))),
            );
        }
        if !self.modern && message["method"] == "ping" && message["id"].as_str().is_some_and(|id| id.contains("stream"))
        {
            return self.stream_reply(answer);
        }
        let answer: Value = serde_json::from_str(answer).unwrap();
        let status = match answer["error"]["code"].as_i64() {
            Some(-32601) if self.modern && !self.has("http/method-status") => 404,
            Some(-32022) if self.modern && !self.has("http/version-status") => 400,
            Some(-32700 | -32600) if self.modern => 400,
            _ => 200,
        };
        let (status, mut headers, body) = json_of(status, &answer);
        if message["method"] == "initialize" && answer.get("result").is_some() {
            let id = if self.has("http/session-id") {
                format!("session {:?}", std::time::Instant::now())
                    .replace(|c: char| !c.is_ascii_alphanumeric() && c != ' ', "")
                    .trim()
                    .to_owned()
            } else {
                format!("s{:?}", std::time::Instant::now()).replace(|c: char| !c.is_ascii_alphanumeric(), "")
            };
            self.sessions.lock().unwrap().insert(id.clone());
            headers.push(("mcp-session-id", id));
        }
        if self.modern && self.has("http/no-session") {
            headers.push(("mcp-session-id", "abc".to_owned()));
        }
        (status, headers, body)
    }

    /// Returns an answer as a stream of one event that can be resumed.
    fn stream_reply(&self, text: &str) -> Reply {
        let mut all = self.events.lock().unwrap();
        let stream = all.len();
        all.push((stream, text.to_owned()));
        let id = if self.has("http/event-ids") { 0 } else { stream };
        (200, vec![("content-type", "text/event-stream".to_owned())], events([(Some(id), text)]))
    }

    /// Returns the events after the given one, on the same stream.
    fn resume_reply(&self, last: &str) -> Reply {
        let last: usize = last.parse().unwrap_or(usize::MAX);
        let all = self.events.lock().unwrap();
        let Some((stream, _)) = all.get(last) else { return (404, Vec::new(), String::new()) };
        let after = all.iter().enumerate().skip(last + 1);
        let replayed = after.filter(|(_, (of, _))| of == stream || self.has("http/resumed-stream"));
        let body = events(replayed.map(|(id, (_, text))| (Some(id), text)));
        (200, vec![("content-type", "text/event-stream".to_owned())], body)
    }

    /// Checks the headers against the body, in the stateless revision.
    fn check_headers(&self, request: &HttpRequest, message: &Value) -> Option<Value> {
        let id = message.get("id");
        if version(&message["params"]).is_null() && !self.has("stateless/envelope") {
            return Some(error(id, -32602, "no version"));
        }
        if version(&message["params"]).is_null() {
            return None;
        }
        let version_header = request.header("mcp-protocol-version");
        if version_header.is_some_and(|named| version(&message["params"]) != named)
            && !self.has("http/version-mismatch")
        {
            return Some(error(id, -32020, "versions differ"));
        }
        let name = request.header("mcp-name");
        if name.is_some_and(|name| message["params"]["name"] != name && message["params"]["uri"] != name)
            && !self.has("http/name-mismatch")
        {
            return Some(error(id, -32020, "names differ"));
        }
        let method = request.header("mcp-method");
        let differs = method.is_some_and(|method| message["method"] != method);
        if (differs && !self.has("http/header-mismatch")) || (method.is_none() && !self.has("http/header-missing")) {
            return Some(error(id, -32020, "headers and body differ"));
        }
        None
    }

    /// Looks up the session of a request of the handshake era; returns the refusal, if any.
    fn session(&self, request: &HttpRequest, message: &Value) -> Option<Reply> {
        let refused =
            |status: u16| Some((status, vec![("content-type", "application/json".to_owned())], String::new()));
        if message["method"] == "initialize" {
            return None;
        }
        let Some(id) = request.header("mcp-session-id") else {
            return refused(if self.has("http/session-required") { 401 } else { 400 });
        };
        let mut sessions = self.sessions.lock().unwrap();
        if !sessions.contains(id) && !self.has("http/session-unknown") {
            return refused(404);
        }
        if request.method == "DELETE" {
            if !self.has("http/session-ended") {
                sessions.remove(id);
            }
            return refused(204);
        }
        let version = request.header("mcp-protocol-version");
        if version.is_some_and(|version| !LEGACY.contains(&version)) && !self.has("http/version-header") {
            return refused(400);
        }
        None
    }
}

fn websocket(server: &Server, mut reader: BufReader<TcpStream>, request: &HttpRequest) {
    let key =
        format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", request.header("sec-websocket-key").unwrap_or_default());
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    let accept = base64::prelude::BASE64_STANDARD.encode(hash);
    let protocol = if server.has("websocket/subprotocol") { "" } else { "Sec-WebSocket-Protocol: mcp\r\n" };
    let head = format!(
        "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{protocol}Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    if reader.get_mut().write_all(head.as_bytes()).is_err() {
        return;
    }
    let mut peer = Peer::default();
    while let Some((opcode, payload)) = frame(&mut reader) {
        let opcode_of_text =
            if server.has("websocket/text-frames") && String::from_utf8_lossy(&payload).contains("\"id\":7777,") {
                2
            } else {
                1
            };
        match opcode {
            1 => {
                for answer in server.answers(&mut peer, &payload) {
                    write_frame(reader.get_mut(), opcode_of_text, answer.as_bytes());
                }
            }
            2 if server.has("websocket/binary") => {}
            2 => write_frame(reader.get_mut(), 8, &1003_u16.to_be_bytes()),
            _ => return,
        }
    }
}

fn frame(reader: &mut impl Read) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    reader.read_exact(&mut head).ok()?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut bytes = [0; 2];
            reader.read_exact(&mut bytes).ok()?;
            u64::from(u16::from_be_bytes(bytes))
        }
        127 => {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes).ok()?;
            u64::from_be_bytes(bytes)
        }
        length => u64::from(length),
    };
    let mut mask = [0; 4];
    reader.read_exact(&mut mask).ok()?;
    let mut payload = vec![0; usize::try_from(length).ok()?];
    reader.read_exact(&mut payload).ok()?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Some((head[0] & 0x0f, payload))
}

fn write_frame(stream: &mut TcpStream, opcode: u8, payload: &[u8]) {
    let mut bytes = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..=125 => bytes.push(u8::try_from(length).unwrap()),
        length @ 126..=0xffff => {
            bytes.push(126);
            bytes.extend_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            bytes.push(127);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    let _ = stream.write_all(&bytes);
}
