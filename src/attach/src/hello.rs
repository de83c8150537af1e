//! The handshake on the socket: the attaching program sends one line with its version and optional key, and the gateway
//! answers with a welcome or a refusal. All further lines are MCP messages.
//!
//! Programs and gateways may have different versions. Both sides therefore ignore members that they do not know, and a
//! member never changes its meaning.

use std::{io, time::Duration};

use countersign_config::Environment;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::version::{OWN_VERSION, is_newer};

/// Maximum bytes of a handshake line.
const MAX_LINE_BYTES: u64 = 8192;
/// The time that the gateway waits for the first line.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The variables with an agent's key, in order. The second is meant for reviewers, but was also used for agents before
/// the first existed.
pub const KEY_VARIABLES: [&str; 2] = ["COUNTERSIGN_AGENT_KEY", "COUNTERSIGN_KEY"];

/// Returns the agent's key from the first of [`KEY_VARIABLES`] that is not empty.
///
/// # Errors
/// The name of a variable whose value is not Unicode.
pub fn agent_key(env: &Environment) -> Result<Option<String>, &'static str> {
    for name in KEY_VARIABLES {
        let key = env.var(name).map_err(|_| name)?.map(str::trim).filter(|key| !key.is_empty());
        if let Some(key) = key {
            return Ok(Some(key.to_owned()));
        }
    }
    Ok(None)
}

/// The first line of `countersign stdio`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The version of this handshake: 1.
    #[serde(rename = "attach")]
    pub handshake_version: u32,
    /// The program's version.
    pub version: String,
    pub pid: u32,
    /// The key from the first of [`KEY_VARIABLES`] that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `true` asks a detached gateway to end if it is older than this program.
    #[serde(default)]
    pub replace: bool,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = self.key.as_ref().map(|_| "…");
        f.debug_struct("Hello").field("version", &self.version).field("pid", &self.pid).field("key", &key).finish()
    }
}

impl Hello {
    /// Creates the hello of this process.
    pub fn from_process(key: Option<String>) -> Self {
        let version = OWN_VERSION.to_owned();
        Self { handshake_version: 1, version, pid: std::process::id(), key, replace: false }
    }
}

/// The answer of the gateway: an object with the member `refused`, `leaving` or `welcome`. The first of them counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HelloAnswer {
    /// The connection is closed, for a reason that people read.
    Refused {
        #[serde(rename = "refused")]
        reason: String,
    },
    /// The gateway of this version ends, because the program is newer. Running calls get the time `limits.drain` to finish.
    Leaving {
        #[serde(rename = "leaving")]
        version: String,
    },
    /// MCP messages follow.
    Welcome {
        #[serde(rename = "welcome")]
        version: String,
        #[serde(rename = "background", default, skip_serializing_if = "std::ops::Not::not")]
        is_detached: bool,
    },
}

/// The decision of a gateway about a process that it has admitted.
#[derive(Debug, PartialEq, Eq)]
pub enum HelloOutcome<T> {
    Serve(T),
    /// The gateway ends. Contains the version of the program that replaces it.
    Leave(String),
}

/// Performs the gateway's side of the handshake: reads the hello, lets `admit` decide, and answers. Only a detached
/// gateway leaves for a newer program, because others are ended by the person or service that started them.
///
/// Returns `Ok(None)` if the connection was refused, sent nothing in time, or was closed.
///
/// # Errors
/// Errors of the connection.
pub async fn accept_handshake<T>(
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    is_detached: bool,
    admit: impl FnOnce(&Hello) -> Result<T, String>,
) -> io::Result<Option<HelloOutcome<T>>> {
    let Ok(line) = tokio::time::timeout(HELLO_TIMEOUT, read_line(reader)).await else { return Ok(None) };
    let Some(line) = line? else { return Ok(None) };
    let hello = serde_json::from_slice::<Hello>(&line).map_err(|_| "the first line is not that of `countersign stdio`");
    let admitted = match &hello {
        Ok(hello) if hello.handshake_version == 1 => admit(hello),
        Ok(hello) => {
            let version = hello.handshake_version;
            Err(format!(
                "this gateway ({OWN_VERSION}) does not support version {version} of the attach handshake; restart it with the \
                 newer program"
            ))
        }
        Err(reason) => Err((*reason).to_owned()),
    };
    let newer = hello.ok().filter(|hello| is_detached && hello.replace && is_newer(&hello.version, OWN_VERSION));
    let (outcome, answer) = match (admitted, newer) {
        (Err(reason), _) => (None, HelloAnswer::Refused { reason }),
        (Ok(_), Some(newer)) => {
            (Some(HelloOutcome::Leave(newer.version)), HelloAnswer::Leaving { version: OWN_VERSION.to_owned() })
        }
        (Ok(admitted), None) => {
            (Some(HelloOutcome::Serve(admitted)), HelloAnswer::Welcome { version: OWN_VERSION.to_owned(), is_detached })
        }
    };
    write_line(writer, &answer).await?;
    Ok(outcome)
}

/// Performs the attaching program's side of the handshake. Returns `None` if the gateway closed the connection without an
/// answer, as it does while it is ending.
///
/// # Errors
/// Errors of the connection, or an answer that is not from a gateway.
pub async fn perform_handshake(
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    hello: &Hello,
) -> io::Result<Option<HelloAnswer>> {
    write_line(writer, hello).await?;
    let Some(line) = read_line(reader).await? else { return Ok(None) };
    let not_a_gateway = |_| io::Error::other("the process that answers on the socket is not a gateway");
    serde_json::from_slice(&line).map(Some).map_err(not_a_gateway)
}

/// Reads a line without its terminator. Returns `None` if the stream ends within the line, or if the line is too long.
async fn read_line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
    Ok(line.strip_suffix(b"\n").map(<[u8]>::to_vec))
}

async fn write_line(writer: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use tokio::io::{BufReader, duplex, split};

    use super::*;

    async fn exchange(first: &[u8]) -> (Option<Hello>, String) {
        match exchange_with(false, first).await {
            (Some(HelloOutcome::Serve(hello)), answer) => (Some(hello), answer),
            (None, answer) => (None, answer),
            (Some(HelloOutcome::Leave(version)), _) => panic!("the gateway leaves for {version}"),
        }
    }

    async fn exchange_with(is_detached: bool, first: &[u8]) -> (Option<HelloOutcome<Hello>>, String) {
        let (near, far) = duplex(1 << 16);
        let (near_read, mut near_write) = split(near);
        let (far_read, mut far_write) = split(far);
        near_write.write_all(first).await.unwrap();
        near_write.shutdown().await.unwrap();
        let admitted = accept_handshake(&mut BufReader::new(far_read), &mut far_write, is_detached, |hello| {
            if hello.key.as_deref() == Some("bad") { Err("unknown key".to_owned()) } else { Ok(hello.clone()) }
        })
        .await
        .unwrap();
        far_write.shutdown().await.unwrap();
        let mut answer = String::new();
        BufReader::new(near_read).read_to_string(&mut answer).await.unwrap();
        (admitted, answer)
    }

    #[tokio::test]
    async fn hello_is_welcomed_or_refused() {
        let mut line = serde_json::to_vec(&Hello::from_process(Some("csk_x".into()))).unwrap();
        line.push(b'\n');
        let (hello, answer) = exchange(&line).await;
        assert_eq!(hello.unwrap().key.as_deref(), Some("csk_x"));
        assert_eq!(answer, format!("{{\"welcome\":\"{}\"}}\n", env!("CARGO_PKG_VERSION")));

        let (hello, answer) = exchange(b"{\"attach\":1,\"version\":\"0\",\"pid\":1,\"key\":\"bad\"}\n").await;
        assert!(hello.is_none());
        assert_eq!(answer, "{\"refused\":\"unknown key\"}\n");

        let (hello, answer) = exchange(b"{\"attach\":2,\"version\":\"9\",\"pid\":1}\n").await;
        assert!(hello.is_none() && answer.contains("version 2 of the attach handshake"), "{answer}");
    }

    #[tokio::test]
    async fn detached_gateway_leaves_only_for_newer_program() {
        let own_version = OWN_VERSION;
        for (is_detached, version, replace, answer) in [
            (true, "99.0.0", ",\"replace\":true", format!("{{\"leaving\":\"{own_version}\"}}\n")),
            (true, "99.0.0", ",\"replace\":false", format!("{{\"welcome\":\"{own_version}\",\"background\":true}}\n")),
            (true, "99.0.0", "", format!("{{\"welcome\":\"{own_version}\",\"background\":true}}\n")),
            (
                true,
                own_version,
                ",\"replace\":true",
                format!("{{\"welcome\":\"{own_version}\",\"background\":true}}\n"),
            ),
            (true, "0.0.1", ",\"replace\":true", format!("{{\"welcome\":\"{own_version}\",\"background\":true}}\n")),
            (false, "99.0.0", ",\"replace\":true", format!("{{\"welcome\":\"{own_version}\"}}\n")),
            (true, "99.0.0", ",\"replace\":true,\"key\":\"bad\"", "{\"refused\":\"unknown key\"}\n".to_owned()),
        ] {
            let hello = format!("{{\"attach\":1,\"version\":\"{version}\",\"pid\":1,\"later\":[1]{replace}}}\n");
            let (outcome, line) = exchange_with(is_detached, hello.as_bytes()).await;
            assert_eq!(line, answer, "{hello}");
            assert_eq!(matches!(outcome, Some(HelloOutcome::Leave(_))), answer.contains("leaving"), "{hello}");
        }
    }

    #[tokio::test]
    async fn malformed_hello_is_refused_in_bounded_memory() {
        for first in [&b"GET / HTTP/1.1\r\n"[..], b"{}\n", b"\n", b"\xff\xfe\n"] {
            let (hello, answer) = exchange(first).await;
            assert!(hello.is_none() && answer.contains("first line"), "{answer}");
        }
        // The first stream is empty, and the others have no end of line.
        for first in [&b""[..], b"{\"attach\":1", &[b'x'; 20_000]] {
            let (hello, answer) = exchange(first).await;
            assert!(hello.is_none() && answer.is_empty(), "{answer}");
        }
    }

    #[tokio::test]
    async fn client_reads_welcome_refusal_or_closed_connection() {
        let (near, far) = duplex(1 << 16);
        let (near_read, mut near_write) = split(near);
        let (far_read, mut far_write) = split(far);
        let hello = Hello::from_process(None);
        let mut near_reader = BufReader::new(near_read);
        let mut far_reader = BufReader::new(far_read);
        let (sent, received) = tokio::join!(
            perform_handshake(&mut near_reader, &mut near_write, &hello),
            accept_handshake(&mut far_reader, &mut far_write, true, |h| Ok(h.pid)),
        );
        assert!(matches!(sent.unwrap(), Some(HelloAnswer::Welcome { is_detached: true, .. })));
        assert_eq!(received.unwrap(), Some(HelloOutcome::Serve(std::process::id())));
        assert!(!format!("{:?}", Hello::from_process(Some("csk_secret".into()))).contains("secret"));
    }
}
