//! A small client of the REST API. It finds the gateway, authenticates with a key, and maps errors to exit codes.

mod address;
pub mod local_gateway;

use std::{path::PathBuf, sync::Arc, time::Duration};

use actix_web::http::{Method, StatusCode, header};
use awc::{ClientRequest, ClientResponse};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use url::Url;

use crate::{
    args::ConnectArgs,
    data_dir,
    exit::{Exit, Failure},
    output::{Output, one_line, print_note},
};
use countersign_config::Environment;
use countersign_net::{self as net, tls};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(35);
/// The size limit of an answer, in bytes. A page of 100 changes with large diffs stays far below.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// The way in which the gateway was located.
enum GatewayLocation {
    /// By an address that the user gave.
    Explicit(Url),
    /// By its data directory: the gateway is looked up and verified again before each request, since it may have ended
    /// and another program may have taken its port.
    DataDirectory(PathBuf),
}

/// Finds the gateway that the arguments name, and runs requests to it.
pub fn run<T>(args: &ConnectArgs, requests: impl AsyncFnOnce(Client) -> Result<T, Failure>) -> Result<T, Failure> {
    actix_web::rt::System::new().block_on(async { requests(Client::new(args)?).await })
}

/// The body of a REST error (RFC 9457).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: Option<String>,
    code: String,
}

/// A response that is not a success.
#[derive(Debug)]
pub struct Refusal {
    status: u16,
    problem: Problem,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Problem { title, detail, code } = refusal.problem;
        // A forbidden action that is not about the key counts as a refusal.
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

/// The body of a successful response.
pub struct ResponseBody(Vec<u8>);

impl ResponseBody {
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.0).map_err(unexpected_response)
    }
    /// Returns the JSON exactly as the gateway sent it.
    pub fn json_line(&self) -> Result<String, Failure> {
        let value: &serde_json::value::RawValue = serde_json::from_slice(&self.0).map_err(unexpected_response)?;
        Ok(value.get().to_owned())
    }
}

pub fn unexpected_response(error: serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the response is not from a Countersign gateway ({error})"))
}

/// A client of one gateway.
pub struct Client {
    http: awc::Client,
    gateway: GatewayLocation,
    key: String,
    /// Set if answers are printed as JSON.
    pub json: bool,
}

impl Client {
    /// Finds the gateway: `--url`, `COUNTERSIGN_URL`, the one that serves the data directory.
    fn new(args: &ConnectArgs) -> Result<Self, Failure> {
        let env = Environment::from_process();
        let key = variable(&env, "COUNTERSIGN_KEY")?.map(str::trim).filter(|key| !key.is_empty());
        let Some(key) = key else {
            return Err(Failure::new(
                Exit::NotAuthorized,
                "COUNTERSIGN_KEY is not set: seeing and deciding on changes needs a reviewer's key. Create one on \
                 the gateway's machine with `export COUNTERSIGN_KEY=$(countersign keys create --role reviewer --name NAME)`",
            ));
        };
        if key.bytes().any(|b| !b.is_ascii_graphic()) {
            return Err(Failure::new(
                Exit::NotAuthorized,
                "COUNTERSIGN_KEY has characters that are not allowed in a key",
            ));
        }
        let (gateway, url) = match explicit_url(args)? {
            Some(url) => (GatewayLocation::Explicit(url.clone()), url),
            None => {
                let data = data_dir(&args.data)?;
                let url = local_gateway::find(&data)?.url;
                (GatewayLocation::DataDirectory(data), url)
            }
        };
        let is_local = url.host_str().is_some_and(|host| {
            host == "localhost"
                || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        });
        if url.scheme() == "http" && !is_local {
            print_note(&format!("warning: the key goes to {} without encryption", one_line(url.as_str())));
        }
        Ok(Self { http: net::client(tls_config(args)?), gateway, key: key.to_owned(), json: args.json })
    }

    /// Prints an answer: unchanged with `--json`, else as `print` formats it.
    pub fn print<T: DeserializeOwned>(
        &self,
        answer: &ResponseBody,
        out: &mut Output,
        print: impl FnOnce(T, &mut Output) -> Result<(), Failure>,
    ) -> Result<Exit, Failure> {
        if self.json {
            out.write_json(&answer.json_line()?)?;
        } else {
            print(answer.read()?, out)?;
        }
        Ok(Exit::Ok)
    }

    /// Prints an answer with `--json`, else this line.
    pub fn print_line(&self, answer: &ResponseBody, out: &mut Output, line: &str) -> Result<Exit, Failure> {
        self.print(answer, out, |_: IgnoredAny, out| Ok(out.write_line(line)?))
    }

    /// Returns the base URL of the next request, after verifying who listens there.
    async fn base(&self) -> Result<Url, Refusal> {
        match &self.gateway {
            GatewayLocation::Explicit(url) => Ok(url.clone()),
            GatewayLocation::DataDirectory(data) => {
                let gateway = local_gateway::find(data).map_err(|failure| unavailable(failure.message))?;
                gateway.verify(&self.http).await.map_err(unavailable)?;
                Ok(gateway.url)
            }
        }
    }

    /// Builds a request to the resource, and returns it with the gateway's base URL.
    async fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<(Url, ClientRequest), Refusal> {
        let base = self.base().await?;
        let request = self.http.request(method, address::endpoint(&base, path, query)).bearer_auth(&self.key);
        Ok((base, request))
    }

    pub async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<ResponseBody, Refusal> {
        let (base, request) = self.request(Method::GET, path, query).await?;
        finish(&base, request.send()).await
    }

    pub async fn post(&self, path: &[&str], body: &serde_json::Value) -> Result<ResponseBody, Refusal> {
        self.post_text(path, body.to_string()).await
    }

    /// Posts a body that is JSON already, like [`Self::post`].
    pub async fn post_text(&self, path: &[&str], body: String) -> Result<ResponseBody, Refusal> {
        let (base, request) = self.request(Method::POST, path, &[]).await?;
        finish(&base, request.insert_header((header::CONTENT_TYPE, "application/json")).send_body(body)).await
    }

    /// Opens the event feed after `since`; the body of the response has no end.
    pub async fn feed(&self, since: Option<u64>) -> Result<ClientResponse<impl ByteStream + use<>>, Refusal> {
        let since = since.map(|seq| seq.to_string());
        let query: Vec<(&str, &str)> = since.iter().map(|seq| ("since", seq.as_str())).collect();
        let (base, request) = self.request(Method::GET, &["events"], &query).await?;
        let request = request.insert_header((header::ACCEPT, "text/event-stream")).send();
        let head = tokio::time::timeout(REQUEST_TIMEOUT, request).await;
        let mut response =
            head.map_err(|_| timeout_refusal(&base))?.map_err(|error| connection_refusal(&base, &error))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = tokio::time::timeout(REQUEST_TIMEOUT, response.body().limit(MAX_RESPONSE_BYTES)).await;
        Err(refusal(status, &body.ok().and_then(Result::ok).unwrap_or_default()))
    }
}

async fn finish(base: &Url, request: awc::SendClientRequest) -> Result<ResponseBody, Refusal> {
    let exchange = async {
        let mut response = request.await.map_err(|error| connection_refusal(base, &error))?;
        let body = response.body().limit(MAX_RESPONSE_BYTES).await;
        let body = body.map_err(|error| connection_refusal(base, &error))?;
        if response.status().is_success() {
            Ok(ResponseBody(body.to_vec()))
        } else {
            Err(refusal(response.status(), &body))
        }
    };
    tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(timeout_refusal(base)))
}

fn timeout_refusal(base: &Url) -> Refusal {
    unavailable_gateway(base, &format!("did not answer within {}s", REQUEST_TIMEOUT.as_secs()))
}

fn connection_refusal(base: &Url, error: &dyn std::error::Error) -> Refusal {
    unavailable_gateway(base, &format!("does not answer: {error}"))
}

fn unavailable_gateway(base: &Url, what: &str) -> Refusal {
    unavailable(format!(
        "the gateway at {} {what}. Is it running (`countersign serve`), and is this its address (--url)?",
        base.as_str().trim_end_matches('/')
    ))
}

fn unavailable(title: String) -> Refusal {
    Refusal { status: 0, problem: Problem { title, ..Problem::default() } }
}

/// A stream of bytes that a response consists of.
pub trait ByteStream: futures_util::Stream<Item = Result<bytes::Bytes, awc::error::PayloadError>> + Unpin {}
impl<T: futures_util::Stream<Item = Result<bytes::Bytes, awc::error::PayloadError>> + Unpin> ByteStream for T {}

impl Refusal {
    /// Returns `true` if trying again later may help.
    pub const fn is_temporary(&self) -> bool {
        matches!(self.status, 0 | 429 | 500..=599)
    }
}

/// Converts an error response into a refusal.
fn refusal(status: StatusCode, body: &[u8]) -> Refusal {
    let problem = serde_json::from_slice(body)
        .unwrap_or_else(|_| Problem { title: format!("the gateway answered {status}"), ..Problem::default() });
    Refusal { status: status.as_u16(), problem }
}

fn variable<'a>(env: &'a Environment, name: &str) -> Result<Option<&'a str>, Failure> {
    env.var(name).map_err(|_| Failure::new(Exit::Usage, format!("environment variable {name} is not Unicode")))
}

/// Returns the address of the gateway that the user gave: `--url`, or `COUNTERSIGN_URL`.
pub fn explicit_url(args: &ConnectArgs) -> Result<Option<Url>, Failure> {
    let env = Environment::from_process();
    let url = match &args.url {
        Some(url) => Some(url.as_str()),
        None => variable(&env, "COUNTERSIGN_URL")?,
    };
    url.map(address::parse).transpose()
}

/// Returns the TLS configuration that trusts the public authorities and those of `--ca`.
pub fn tls_config(args: &ConnectArgs) -> Result<Arc<rustls::ClientConfig>, Failure> {
    let Some(file) = &args.ca else { return Ok(tls::public_config()) };
    let authorities = tls::read_authorities(file)
        .map_err(|why| Failure::new(Exit::Usage, format!("--ca {}: {why}", file.display())))?;
    Ok(tls::client_config(tls::roots_with(authorities), &[tls::HTTP_2, tls::HTTP_1_1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Client {
        let gateway = GatewayLocation::Explicit(address::parse(url).unwrap());
        Client { http: net::client(tls::public_config()), gateway, key: "csk_x".into(), json: false }
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
    async fn unreachable_gateway_is_a_temporary_error() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let refusal = client(&format!("http://127.0.0.1:{port}")).get(&["changes"], &[]).await.err().unwrap();
        assert!(refusal.is_temporary());
        let failure = Failure::from(refusal);
        assert_eq!(failure.exit, Exit::Unavailable);
        assert!(failure.message.contains("countersign serve"), "{failure}");
    }
}
