//! A small client of the REST API. It finds the gateway, authenticates with a key or with the tokens of `countersign login`,
//! and maps errors to exit codes.

pub mod address;
pub mod local_gateway;
mod request_failure;
mod response;
pub mod stored_logins;

use std::{path::PathBuf, sync::Arc, time::Duration};

use actix_web::http::{Method, StatusCode, header};
use awc::{ClientRequest, error::PayloadError};
use bytes::Bytes;
use futures_util::Stream;
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use url::Url;

pub use self::response::{ResponseBody, unexpected_response};
use self::stored_logins::{LoginFile, StoredLogin};
use crate::{
    args::ConnectArgs,
    data_dir,
    exit::{Exit, Failure},
    output::{Output, one_line, print_note},
};
use countersign_config::{Authorities, Environment};
use countersign_domain::changes::Change;
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

/// The credential of requests.
pub enum Credential {
    Nothing,
    /// A key or an access token.
    Bearer(String),
    /// The tokens of `countersign login` for this gateway.
    StoredLogin(LoginFile),
}

/// Finds the gateway that the arguments name, and runs requests to it.
pub fn run<T>(args: &ConnectArgs, requests: impl AsyncFnOnce(Client) -> Result<T, Failure>) -> Result<T, Failure> {
    actix_web::rt::System::new().block_on(async { requests(Client::new(args)?).await })
}

/// The user for whom a client acts (`/api/me`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentUser {
    pub name: String,
    /// The name for people, if it differs.
    pub display_name: Option<String>,
    /// The person to whom the credential belongs.
    pub owner: String,
    pub role: String,
    pub key_id: Option<String>,
    #[serde(default)]
    pub other_names: Vec<String>,
    pub groups: Vec<String>,
    pub may_decide: bool,
    /// The absent people whose deputy the user is.
    #[serde(default)]
    pub deputy_for: Vec<AbsentColleague>,
}

/// An absent person, and the groups for which their deputy may decide.
#[derive(Clone, Debug, Deserialize)]
pub struct AbsentColleague {
    pub name: String,
    pub groups: Vec<String>,
}

impl CurrentUser {
    /// Returns the name for people.
    pub fn shown_name(&self) -> &str {
        self.display_name.as_ref().unwrap_or(&self.name)
    }
}

/// A client of one gateway.
pub struct Client {
    http: awc::Client,
    /// The certificate authorities of `--ca`, which the gateway and the identity provider may use.
    pub authorities: Option<Authorities>,
    gateway: GatewayLocation,
    /// The name of the gateway among stored logins: its public address, without a slash at its end.
    pub name: String,
    pub credential: Credential,
    /// Set if answers are printed as JSON.
    pub json: bool,
    /// The maximum wait for a response.
    pub timeout: Duration,
}

impl Client {
    /// Finds the gateway: `--url`, `COUNTERSIGN_URL`, the one that serves the data directory. The credential is
    /// `COUNTERSIGN_KEY`, or else what `countersign login` stored.
    fn new(args: &ConnectArgs) -> Result<Self, Failure> {
        let env = Environment::from_process();
        let key = variable(&env, "COUNTERSIGN_KEY")?.map(str::trim).filter(|key| !key.is_empty());
        let Some(key) = key else {
            return Self::with_stored_login(args, LoginFile::locate(&env).ok());
        };
        if key.bytes().any(|b| !b.is_ascii_graphic()) {
            return Err(Failure::new(
                Exit::NotAuthorized,
                "COUNTERSIGN_KEY has characters that are not allowed in a key",
            ));
        }
        Ok(Self { credential: Credential::Bearer(key.to_owned()), ..Self::without_credential(args)? })
    }

    fn with_stored_login(args: &ConnectArgs, logins: Option<LoginFile>) -> Result<Self, Failure> {
        if let Some(logins) = logins
            && !logins.is_empty()?
        {
            let client = Self::without_credential(args)?;
            if logins.find(&client.name)?.is_some() {
                return Ok(Self { credential: Credential::StoredLogin(logins), ..client });
            }
        }
        Err(Failure::new(
            Exit::NotAuthorized,
            "COUNTERSIGN_KEY is not set: seeing and deciding on changes needs a reviewer. Create a key on the gateway's machine \
             with `export COUNTERSIGN_KEY=$(countersign keys create --role reviewer --name NAME)`, or, if the gateway has an \
             identity provider, sign in with `countersign login`",
        ))
    }

    /// Finds the gateway for requests that need no credential.
    pub fn without_credential(args: &ConnectArgs) -> Result<Self, Failure> {
        let (gateway, url, name): (_, _, String) = match explicit_url(args)? {
            Some(url) => (GatewayLocation::Explicit(url.clone()), url.clone(), url.into()),
            None => {
                let data = data_dir(&args.data)?;
                let gateway = local_gateway::find(&data)?;
                (GatewayLocation::DataDirectory(data), gateway.url, gateway.link_base)
            }
        };
        let is_local = url.host_str().is_some_and(|host| {
            host == "localhost"
                || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        });
        if url.scheme() == "http" && !is_local {
            print_note(&format!("warning: the credential goes to {} without encryption", one_line(url.as_str())));
        }
        let authorities = read_authorities(args)?;
        Ok(Self {
            http: net::client(tls_config(authorities.as_ref())),
            authorities,
            gateway,
            name: name.trim_end_matches('/').to_owned(),
            credential: Credential::Nothing,
            json: args.json,
            timeout: REQUEST_TIMEOUT,
        })
    }

    /// Returns the file with the tokens of this user.
    pub fn logins(&self) -> Result<LoginFile, Failure> {
        LoginFile::locate(&Environment::from_process())
    }

    /// Returns the tokens with which requests are authenticated, unless that is done with a key.
    pub fn stored_login(&self) -> Result<Option<StoredLogin>, Failure> {
        match &self.credential {
            Credential::StoredLogin(logins) => logins.find(&self.name),
            Credential::Nothing | Credential::Bearer(_) => Ok(None),
        }
    }

    /// Prints an answer: unchanged with `--json`, else as `print` formats it.
    pub fn print<T: DeserializeOwned>(
        &self,
        answer: &ResponseBody,
        out: &mut Output,
        print: impl FnOnce(T, &mut Output) -> Result<(), Failure>,
    ) -> Result<Exit, Failure> {
        self.print_parsed(answer, out, ResponseBody::read, print)
    }

    /// Prints an answer that is a change, like [`Self::print`].
    pub fn print_change(
        &self,
        answer: &ResponseBody,
        out: &mut Output,
        print: impl FnOnce(Change, &mut Output) -> Result<(), Failure>,
    ) -> Result<Exit, Failure> {
        self.print_parsed(answer, out, ResponseBody::read_change, print)
    }

    fn print_parsed<T>(
        &self,
        answer: &ResponseBody,
        out: &mut Output,
        parse: fn(&ResponseBody) -> Result<T, Failure>,
        print: impl FnOnce(T, &mut Output) -> Result<(), Failure>,
    ) -> Result<Exit, Failure> {
        if self.json {
            out.write_json(&answer.json_line()?)?;
        } else {
            print(parse(answer)?, out)?;
        }
        Ok(Exit::Ok)
    }

    /// Prints an answer with `--json`, else this line.
    pub fn print_line(&self, answer: &ResponseBody, out: &mut Output, line: &str) -> Result<Exit, Failure> {
        self.print(answer, out, |_: IgnoredAny, out| Ok(out.write_line(line)?))
    }

    /// Returns the base URL of the next request, after verifying who listens there.
    async fn base(&self) -> Result<Url, Failure> {
        match &self.gateway {
            GatewayLocation::Explicit(url) => Ok(url.clone()),
            GatewayLocation::DataDirectory(data) => {
                let gateway =
                    local_gateway::find(data).map_err(|failure| request_failure::unavailable(&failure.message))?;
                gateway.verify(&self.http).await.map_err(|reason| request_failure::unavailable(&reason))?;
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
    ) -> Result<(Url, ClientRequest), Failure> {
        let base = self.base().await?;
        let request = self.http.request(method, address::endpoint(&base, path, query));
        let request = match &self.credential {
            Credential::Nothing => request,
            Credential::Bearer(token) => request.bearer_auth(token),
            Credential::StoredLogin(logins) => {
                let token = logins.access_token(&self.name, self.authorities.clone()).await;
                request.bearer_auth(token.map_err(|failure| request_failure::unusable_login(&failure))?)
            }
        };
        Ok((base, request))
    }

    /// Sends a request to the resource, with a body that is JSON if there is one, and reads the answer.
    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<ResponseBody, Failure> {
        let (base, request) = self.request(method, path, query).await?;
        let response = match body {
            Some(body) => request.insert_header((header::CONTENT_TYPE, "application/json")).send_body(body),
            None => request.send(),
        };
        let exchange = async {
            let mut response = response
                .await
                .map_err(|error| request_failure::unreachable(&base, &net::describe_send_error(&error)))?;
            let body = response.body().limit(MAX_RESPONSE_BYTES).await;
            let body = body.map_err(|error| request_failure::unreachable(&base, &error.to_string()))?;
            if response.status().is_success() {
                Ok(ResponseBody(body.to_vec()))
            } else {
                Err(request_failure::error_response(response.status(), &body, path))
            }
        };
        let answer = tokio::time::timeout(self.timeout, exchange).await;
        answer.unwrap_or_else(|_| Err(request_failure::timeout(&base, self.timeout)))
    }

    pub async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<ResponseBody, Failure> {
        self.send(Method::GET, path, query, None).await
    }

    /// Fetches a change.
    pub async fn get_change(&self, id: &str) -> Result<Change, Failure> {
        self.get(&["changes", id], &[]).await?.read_change()
    }

    pub async fn delete(&self, path: &[&str]) -> Result<ResponseBody, Failure> {
        self.send(Method::DELETE, path, &[], None).await
    }

    pub async fn post(&self, path: &[&str], body: &serde_json::Value) -> Result<ResponseBody, Failure> {
        self.post_text(path, body.to_string()).await
    }

    /// Posts a body that is JSON already, like [`Self::post`].
    pub async fn post_text(&self, path: &[&str], body: String) -> Result<ResponseBody, Failure> {
        self.send(Method::POST, path, &[], Some(body)).await
    }

    pub async fn put(&self, path: &[&str], body: &serde_json::Value) -> Result<ResponseBody, Failure> {
        self.send(Method::PUT, path, &[], Some(body.to_string())).await
    }

    /// Opens the event feed after `since`; the body of the response has no end.
    pub async fn feed(
        &self,
        since: Option<u64>,
    ) -> Result<impl Stream<Item = Result<Bytes, PayloadError>> + Unpin + use<>, Failure> {
        let since = since.map(|seq| seq.to_string());
        let query: Vec<(&str, &str)> = since.iter().map(|seq| ("since", seq.as_str())).collect();
        let (base, request) = self.request(Method::GET, &["events"], &query).await?;
        let request = request.insert_header((header::ACCEPT, "text/event-stream")).send();
        let head = tokio::time::timeout(self.timeout, request).await;
        let head = head.map_err(|_| request_failure::timeout(&base, self.timeout))?;
        let mut response =
            head.map_err(|error| request_failure::unreachable(&base, &net::describe_send_error(&error)))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = tokio::time::timeout(self.timeout, response.body().limit(MAX_RESPONSE_BYTES)).await;
        Err(request_failure::error_response(status, &body.ok().and_then(Result::ok).unwrap_or_default(), &["events"]))
    }
}

fn variable<'a>(env: &'a Environment, name: &str) -> Result<Option<&'a str>, Failure> {
    env.var(name).map_err(|_| Failure::new(Exit::Usage, format!("environment variable {name} is not Unicode")))
}

/// Returns the address of the gateway that the user gave: `--url`, or `COUNTERSIGN_URL`. Otherwise its data directory
/// identifies the gateway.
pub fn explicit_url(args: &ConnectArgs) -> Result<Option<Url>, Failure> {
    let env = Environment::from_process();
    let url = match &args.url {
        Some(url) => Some(url.as_str()),
        None => variable(&env, "COUNTERSIGN_URL")?,
    };
    url.map(address::parse).transpose()
}

/// Reads the authorities of `--ca`.
pub fn read_authorities(args: &ConnectArgs) -> Result<Option<Authorities>, Failure> {
    let Some(file) = &args.ca else { return Ok(None) };
    let certificates = tls::read_authorities(file)
        .map_err(|error| Failure::new(Exit::Usage, format!("--ca {}: {error}", file.display())))?;
    Ok(Some(Authorities { file: file.clone(), certificates }))
}

/// Returns the TLS configuration that trusts the public authorities and these.
pub fn tls_config(authorities: Option<&Authorities>) -> Arc<rustls::ClientConfig> {
    tls::config_with_authorities(authorities.map(|authorities| authorities.certificates.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Client {
        let gateway = GatewayLocation::Explicit(address::parse(url).unwrap());
        let (http, name) = (net::client(tls::public_config()), url.to_owned());
        let credential = Credential::Bearer("csk_x".into());
        Client { http, authorities: None, gateway, name, credential, json: false, timeout: REQUEST_TIMEOUT }
    }

    #[actix::test]
    async fn unreachable_gateway_is_a_temporary_error() {
        // Nobody serves the port of tcpmux (RFC 1078).
        let failure = client("http://127.0.0.1:1").get(&["changes"], &[]).await.err().unwrap();
        assert!(failure.is_temporary);
        assert_eq!(failure.exit, Exit::Unavailable);
        assert!(failure.message.contains("countersign serve"), "{failure}");
    }
}
