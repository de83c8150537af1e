//! A small client of the REST endpoint: where the gateway is, one key, one request at a time, errors as exit codes.

mod address;
pub mod own_gateway;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use actix_web::http::{StatusCode, header};
use awc::ClientResponse;
use serde::{Deserialize, de::DeserializeOwned};
use url::Url;

use crate::{
    args::ConnectArgs,
    data_dir,
    exit::{Exit, Failure},
    output::{one_line, remark},
};
use countersign_config::Environment;
use countersign_net::{self as net, Backoff, tls};

/// The pauses before the feed is opened again.
pub const FEED_BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(10) };
const REQUEST: Duration = Duration::from_secs(35);
/// Bytes of an answer. A page of 100 changes with large diffs stays far below.
const MAX_ANSWER: usize = 256 << 20;

/// Which gateway, and as whom.
pub struct Target {
    place: Place,
    key: String,
    ca: Option<PathBuf>,
}

/// How the gateway is known.
enum Place {
    /// By an address that a person wrote.
    Written(Url),
    /// As the one that serves the data directory: looked up and proved anew for each request, since it may have ended
    /// meanwhile, and another program may have its port.
    Serves(PathBuf),
}

/// Finds the gateway: `--url`, `COUNTERSIGN_URL`, the one that serves the data directory.
pub fn target(args: &ConnectArgs) -> Result<Target, Failure> {
    let env = Environment::of_process();
    let variable = |name: &str| {
        env.var(name).map_err(|_| Failure::new(Exit::Usage, format!("environment variable {name} is not Unicode")))
    };
    let named = match &args.url {
        Some(url) => Some(url.clone()),
        None => variable("COUNTERSIGN_URL")?.map(str::to_owned),
    };
    let Some(key) = variable("COUNTERSIGN_KEY")?.map(str::trim).filter(|key| !key.is_empty()) else {
        return Err(Failure::new(
            Exit::NotAuthorized,
            "COUNTERSIGN_KEY is not set: changes are shown to and decided by people with a reviewer's key. Make one on \
             the gateway's machine with `export COUNTERSIGN_KEY=$(countersign keys create --role reviewer --name NAME)`",
        ));
    };
    if key.bytes().any(|b| !b.is_ascii_graphic()) {
        return Err(Failure::new(Exit::NotAuthorized, "COUNTERSIGN_KEY has characters that no key has"));
    }
    let (place, url) = match named {
        Some(url) => {
            let url = address::parse(&url)?;
            (Place::Written(url.clone()), url)
        }
        None => {
            let data = data_dir(&args.data)?;
            let url = own_gateway::named(&data)?.url;
            (Place::Serves(data), url)
        }
    };
    let local = url.host_str().is_some_and(|host| {
        host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    });
    if url.scheme() == "http" && !local {
        remark(&format!("warning: the key goes to {} without encryption", one_line(url.as_str())));
    }
    Ok(Target { place, key: key.to_owned(), ca: args.ca.clone() })
}

/// What REST says of an error (RFC 9457).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: Option<String>,
    code: String,
}

/// An answer that is no success.
#[derive(Debug)]
pub struct Refusal {
    status: u16,
    problem: Problem,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Problem { title, detail, code } = refusal.problem;
        // Forbidden things that are not about the key are refusals.
        let exit = match (refusal.status, code.as_str()) {
            (0, _) => Exit::Unavailable,
            (_, "SELF_APPROVAL" | "POLICY_DENIED" | "EDIT_FORBIDDEN") => Exit::Failed,
            (401 | 403, _) => Exit::NotAuthorized,
            (404, "CHANGE_NOT_FOUND" | "NOT_FOUND") => Exit::NotFound,
            (409 | 410, _) => Exit::Conflict,
            (502..=504, _) => Exit::Unavailable,
            _ => Exit::Failed,
        };
        let what = detail.filter(|d| !d.is_empty()).unwrap_or(title);
        let what = if what.is_empty() { format!("the gateway answered {}", refusal.status) } else { what };
        let code = if code.is_empty() { String::new() } else { format!(" ({})", one_line(&code)) };
        Self::new(exit, format!("{}{code}", one_line(what.trim_end_matches('.'))))
    }
}

/// A successful answer.
pub struct ResponseBody(Vec<u8>);

impl ResponseBody {
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.0).map_err(not_ours)
    }
    /// The JSON as the gateway sent it.
    pub fn json_line(&self) -> Result<String, Failure> {
        let value: &serde_json::value::RawValue = serde_json::from_slice(&self.0).map_err(not_ours)?;
        Ok(value.get().to_owned())
    }
}

pub fn not_ours(error: serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the answer is not that of a Countersign gateway ({error})"))
}

/// Speaks to one gateway.
pub struct Client {
    http: awc::Client,
    place: Place,
    key: String,
}

impl Client {
    pub fn new(target: Target) -> Result<Self, Failure> {
        let tls = target.ca.as_deref().map_or_else(|| Ok(tls::public_config()), trusting)?;
        Ok(Self { http: net::client(tls), place: target.place, key: target.key })
    }

    /// Where the next request goes, once it is sure who listens there.
    async fn base(&self) -> Result<Url, Refusal> {
        match &self.place {
            Place::Written(url) => Ok(url.clone()),
            Place::Serves(data) => {
                let named = own_gateway::named(data).map_err(|failure| unavailable(failure.message))?;
                named.prove(&self.http).await.map_err(unavailable)?;
                Ok(named.url)
            }
        }
    }

    fn bearer(&self) -> (header::HeaderName, String) {
        (header::AUTHORIZATION, format!("Bearer {}", self.key))
    }

    pub async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<ResponseBody, Refusal> {
        let base = self.base().await?;
        let request = self.http.get(address::endpoint(&base, path, query)).insert_header(self.bearer());
        finish(&base, request.send()).await
    }

    pub async fn post(&self, path: &[&str], body: &serde_json::Value) -> Result<ResponseBody, Refusal> {
        let base = self.base().await?;
        let request = self.http.post(address::endpoint(&base, path, &[])).insert_header(self.bearer());
        finish(&base, request.send_json(body)).await
    }

    /// As [`Self::post`], with a body that is JSON already.
    pub async fn post_text(&self, path: &[&str], body: String) -> Result<ResponseBody, Refusal> {
        let base = self.base().await?;
        let request = self.http.post(address::endpoint(&base, path, &[])).insert_header(self.bearer());
        finish(&base, request.insert_header((header::CONTENT_TYPE, "application/json")).send_body(body)).await
    }

    /// Opens the feed after `since`; the answer's body goes on until somebody ends it.
    pub async fn feed(&self, since: Option<u64>) -> Result<ClientResponse<impl Stream + use<>>, Refusal> {
        let since = since.map(|seq| seq.to_string());
        let query: Vec<(&str, &str)> = since.iter().map(|seq| ("since", seq.as_str())).collect();
        let base = self.base().await?;
        let request = self
            .http
            .get(address::endpoint(&base, &["events"], &query))
            .insert_header(self.bearer())
            .insert_header((header::ACCEPT, "text/event-stream"));
        let head = tokio::time::timeout(REQUEST, request.send()).await;
        let mut response = head.map_err(|_| silent(&base))?.map_err(|error| unreachable(&base, &error))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = tokio::time::timeout(REQUEST, response.body().limit(MAX_ANSWER)).await;
        Err(refusal(status, &body.ok().and_then(Result::ok).unwrap_or_default()))
    }
}

async fn finish(base: &Url, request: awc::SendClientRequest) -> Result<ResponseBody, Refusal> {
    let exchange = async {
        let mut response = request.await.map_err(|error| unreachable(base, &error))?;
        let body = response.body().limit(MAX_ANSWER).await;
        let body = body.map_err(|error| unreachable(base, &error))?;
        if response.status().is_success() {
            Ok(ResponseBody(body.to_vec()))
        } else {
            Err(refusal(response.status(), &body))
        }
    };
    tokio::time::timeout(REQUEST, exchange).await.unwrap_or_else(|_| Err(silent(base)))
}

fn silent(base: &Url) -> Refusal {
    away(base, &format!("did not answer within {}s", REQUEST.as_secs()))
}

fn unreachable(base: &Url, error: &dyn std::error::Error) -> Refusal {
    away(base, &format!("does not answer: {error}"))
}

fn away(base: &Url, what: &str) -> Refusal {
    unavailable(format!(
        "the gateway at {} {what}. Is it running (`countersign serve`), and is this its address (--url)?",
        base.as_str().trim_end_matches('/')
    ))
}

fn unavailable(title: String) -> Refusal {
    Refusal { status: 0, problem: Problem { title, ..Problem::default() } }
}

pub trait Stream: futures_util::Stream<Item = Result<bytes::Bytes, awc::error::PayloadError>> + Unpin {}
impl<T: futures_util::Stream<Item = Result<bytes::Bytes, awc::error::PayloadError>> + Unpin> Stream for T {}

impl Refusal {
    /// Trying again later may help.
    pub const fn is_temporary(&self) -> bool {
        matches!(self.status, 0 | 429 | 500..=599)
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> Refusal {
    let problem = serde_json::from_slice(body)
        .unwrap_or_else(|_| Problem { title: format!("the gateway answered {status}"), ..Problem::default() });
    Refusal { status: status.as_u16(), problem }
}

/// Returns the TLS configuration that trusts the public authorities and those of the file.
fn trusting(file: &Path) -> Result<Arc<rustls::ClientConfig>, Failure> {
    let authorities = tls::read_authorities(file)
        .map_err(|why| Failure::new(Exit::Usage, format!("--ca {}: {why}", file.display())))?;
    Ok(tls::client_config(tls::roots_with(authorities), &[tls::HTTP_2, tls::HTTP_1_1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Client {
        let place = Place::Written(address::parse(url).unwrap());
        Client::new(Target { place, key: "csk_x".into(), ca: None }).unwrap()
    }

    #[test]
    fn problems_become_exit_codes() {
        let exit = |status: u16, code: &str| {
            let body =
                format!("{{\"title\":\"T\",\"detail\":\"what\\u001b[2J\",\"code\":\"{code}\",\"status\":{status}}}");
            let failure = Failure::from(refusal(StatusCode::from_u16(status).unwrap(), body.as_bytes()));
            assert_eq!(failure.message, format!("what\\u{{1b}}[2J ({code})"));
            failure.exit
        };
        assert_eq!(exit(401, "UNAUTHORIZED"), Exit::NotAuthorized);
        assert_eq!(exit(403, "FORBIDDEN"), Exit::NotAuthorized);
        assert_eq!(exit(403, "SELF_APPROVAL"), Exit::Failed);
        assert_eq!(exit(404, "CHANGE_NOT_FOUND"), Exit::NotFound);
        assert_eq!(exit(409, "CHANGE_STALE"), Exit::Conflict);
        assert_eq!(exit(429, "RATE_LIMITED"), Exit::Failed);
        assert_eq!(exit(503, "OVERLOADED"), Exit::Unavailable);
        let failure = Failure::from(refusal(StatusCode::BAD_GATEWAY, b"<html>"));
        assert!(failure.message.contains("502"), "{failure}");
    }

    #[actix::test]
    async fn nobody_there() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let refusal = client(&format!("http://127.0.0.1:{port}")).get(&["changes"], &[]).await.err().unwrap();
        assert!(refusal.is_temporary());
        let failure = Failure::from(refusal);
        assert_eq!(failure.exit, Exit::Unavailable);
        assert!(failure.message.contains("countersign serve"), "{failure}");
    }
}
