//! Finds the gateway that serves a data directory and asks it to prove its identity. Before that, neither a key nor a
//! sign-in code is sent to it.

use std::{path::Path, time::Duration};

use actix_web::http::StatusCode;
use url::Url;

use super::address;
use crate::{
    exit::{Exit, Failure},
    output::one_line,
};
use countersign_attach::{
    GatewayFile,
    proof::{self, ProofSecret},
};
use countersign_net::describe_send_error;

/// The time limit for the answer to a challenge.
const CHALLENGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The size limit of the response to a challenge, in bytes.
const MAX_RESPONSE_BYTES: usize = 4096;

/// The gateway that serves a data directory, according to its gateway file.
#[derive(Debug)]
pub struct LocalGateway {
    /// The base URL of requests.
    pub url: Url,
    /// The base URL of links for people.
    pub link_base: String,
    secret: Option<ProofSecret>,
    /// The gateway's data directory, for messages.
    data: String,
}

/// Reads which gateway serves a data directory.
///
/// # Errors
/// Fails if no gateway serves it, or if it cannot be read.
pub fn find(dir: &Path) -> Result<LocalGateway, Failure> {
    let (file, data) = read(dir)?;
    // A certificate is issued for the public name, if there is one.
    let url = file.public_url.as_ref().filter(|_| file.url.starts_with("https:")).unwrap_or(&file.url);
    LocalGateway::new(url, &file, data)
}

/// Reads which gateway serves a data directory, with its address on this machine, for which its certificate may not be valid.
///
/// # Errors
/// Fails if no gateway serves it, or if it cannot be read.
pub fn find_locally(dir: &Path) -> Result<LocalGateway, Failure> {
    let (file, data) = read(dir)?;
    LocalGateway::new(&file.url, &file, data)
}

/// Reads the gateway file of a data directory; `None` if there is none.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn read_file(dir: &Path) -> Result<Option<GatewayFile>, Failure> {
    GatewayFile::read(dir).map_err(|error| {
        let data = dir.display().to_string();
        Failure::new(Exit::Unavailable, format!("{} cannot be read: {error}", one_line(&data)))
    })
}

/// Returns the gateway file, and the data directory for messages.
fn read(dir: &Path) -> Result<(GatewayFile, String), Failure> {
    let data = one_line(&dir.display().to_string()).into_owned();
    let Some(file) = read_file(dir)? else {
        return Err(Failure::new(
            Exit::Unavailable,
            format!(
                "no gateway serves {data}. Start one with `countersign serve`, name another data directory (--data DIR), \
                 or write the address of a gateway yourself (--url URL)"
            ),
        ));
    };
    Ok((file, data))
}

impl LocalGateway {
    fn new(url: &str, file: &GatewayFile, data: String) -> Result<Self, Failure> {
        let (link_base, secret) = (file.link_base().to_owned(), file.proof.clone());
        Ok(Self { url: address::parse(url)?, link_base, secret, data })
    }

    /// Verifies that the program that listens at the address is this gateway.
    ///
    /// # Errors
    /// Returns a message for people: nothing answers, another program answers, or the gateway is too old to prove its
    /// identity.
    pub async fn verify(&self, http: &awc::Client) -> Result<(), String> {
        let (url, data) = (self.url.as_str().trim_end_matches('/'), &self.data);
        let Some(secret) = &self.secret else {
            return Err(format!(
                "the gateway of {data} cannot prove that it is the one at {url}: an older version started it. Restart it, \
                 or write its address yourself (--url {url})"
            ));
        };
        let challenge = proof::new_challenge().ok_or("the operating system gives no random bytes")?;
        let exchange = async {
            let request = http.get(format!("{url}{}?challenge={challenge}", proof::PROOF_PATH));
            let mut response = request.send().await.map_err(|error| describe_send_error(&error))?;
            let body = response.body().limit(MAX_RESPONSE_BYTES).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((response.status(), body))
        };
        let hint = "Start the gateway with `countersign serve`, or write the address of one yourself (--url URL)";
        let (status, body) = match tokio::time::timeout(CHALLENGE_TIMEOUT, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(reason)) => {
                return Err(format!("the gateway of {data} does not answer at {url} ({}). {hint}", one_line(&reason)));
            }
            Err(_) => return Err(format!("the gateway of {data} does not answer at {url}. {hint}")),
        };
        let proved = status == StatusCode::OK
            && std::str::from_utf8(&body).is_ok_and(|answer| secret.is_valid_answer(&challenge, answer));
        if proved {
            return Ok(());
        }
        Err(format!(
            "the program that listens at {url} is not the gateway of {data}, and no key was sent to it. {hint}, if that is the one you mean"
        ))
    }
}
