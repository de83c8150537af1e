//! The gateway that serves a data directory: where it is, and the proof that whoever listens there is that one. Before
//! it has proved so, it is told nothing: no key, no sign-in code.

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
    proof::{self, Secret},
};

/// How long it may take to answer a challenge.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const MAX_ANSWER: usize = 4096;

/// A gateway as its data directory names it.
#[derive(Debug)]
pub struct Named {
    /// Where requests go.
    pub url: Url,
    /// What links for people begin with.
    pub link_base: String,
    secret: Option<Secret>,
    /// Of the gateway's directory, for messages.
    data: String,
}

/// Reads which gateway serves a data directory.
///
/// # Errors
/// There is none.
pub fn named(dir: &Path) -> Result<Named, Failure> {
    let data = one_line(&dir.display().to_string()).into_owned();
    let Some(file) = GatewayFile::read(dir) else {
        return Err(Failure::new(
            Exit::Unavailable,
            format!(
                "no gateway serves {data}. Start one with `countersign serve`, name another data directory (--data DIR), \
                 or write the address of a gateway yourself (--url URL)"
            ),
        ));
    };
    let url = match file {
        // A certificate is for the public name, if there is one.
        GatewayFile { public_url: Some(ref public), ref url, .. } if url.starts_with("https:") => public,
        ref file => &file.url,
    };
    Ok(Named { url: address::parse(url)?, link_base: file.link_base().to_owned(), secret: file.proof, data })
}

impl Named {
    /// Has whoever listens there prove that it is this gateway.
    ///
    /// # Errors
    /// What to tell a person: nobody answers, somebody else does, or the gateway is too old to prove anything.
    pub async fn prove(&self, http: &awc::Client) -> Result<(), String> {
        let (url, data) = (self.url.as_str().trim_end_matches('/'), &self.data);
        let Some(secret) = &self.secret else {
            return Err(format!(
                "the gateway of {data} cannot prove that it is the one at {url}: an older version started it. Restart it, \
                 or write its address yourself (--url {url})"
            ));
        };
        let challenge = proof::challenge().ok_or("the operating system gives no random bytes")?;
        let exchange = async {
            let request = http.get(format!("{url}{}?challenge={challenge}", proof::PATH));
            let mut response = request.send().await.map_err(|error| error.to_string())?;
            let body = response.body().limit(MAX_ANSWER).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((response.status(), body))
        };
        let hint = "Start the gateway with `countersign serve`, or write the address of one yourself (--url URL)";
        let answer = match tokio::time::timeout(PATIENCE, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => {
                return Err(format!("the gateway of {data} does not answer at {url} ({}). {hint}", one_line(&why)));
            }
            Err(_) => return Err(format!("the gateway of {data} does not answer at {url}. {hint}")),
        };
        let (status, body) = answer;
        let proved = status == StatusCode::OK
            && std::str::from_utf8(&body).is_ok_and(|answer| secret.is_answered(&challenge, answer));
        if proved {
            return Ok(());
        }
        Err(format!(
            "the program that listens at {url} is not the gateway of {data}, and no key was sent to it. {hint}, if that is the one you mean"
        ))
    }
}
