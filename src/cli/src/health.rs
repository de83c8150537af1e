//! `health`: asks the gateway whether it can take work, for containers and probes.

use std::time::Duration;

use actix_web::http::StatusCode;
use serde_json::Value;

use super::{
    args::ConnectArgs,
    client::{self, local_gateway},
    data_dir,
    exit::{Exit, Failure},
    output::{Output, one_line},
};
use countersign_app::serve::unready_reasons;
use countersign_net::{self as net, tls};

/// The time limit of the whole command.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The size limit of the response, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Prints the health. Every failure gives the exit code 1, because probes and containers know no other one.
pub fn run(args: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let to_failure = |reason: String| {
        let line: Vec<&str> = reason.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Failure::new(Exit::Failed, line.join(" "))
    };
    let (url, status, body) = actix_web::rt::System::new()
        .block_on(async {
            let timeout = || to_failure(format!("the gateway has not answered within {} s", TIMEOUT.as_secs()));
            tokio::time::timeout(TIMEOUT, request(args)).await.unwrap_or_else(|_| Err(timeout()))
        })
        .map_err(|failure| to_failure(failure.message))?;
    let body = String::from_utf8_lossy(&body);
    let health: Value = body.parse().unwrap_or_default();
    let store = health["checks"]["store"].as_str();
    let (Some(summary), Some(ready), Some(_)) = (health["status"].as_str(), health["ready"].as_bool(), store) else {
        return Err(to_failure(format!("the response of {url} ({status}) is not from a Countersign gateway")));
    };
    let is_ready = status == StatusCode::OK && ready;
    if args.json {
        out.write_json(&body)?;
    } else if is_ready {
        out.write_line(&format!("the gateway at {url} is ready"))?;
    } else {
        let reasons = unready_reasons(&health).join("; ");
        let reasons = if reasons.is_empty() { summary } else { &reasons };
        return Err(to_failure(format!("the gateway at {url} is not ready: {}", one_line(reasons))));
    }
    Ok(if is_ready { Exit::Ok } else { Exit::Failed })
}

/// Sends `GET /health` to the gateway; returns its address, the status and the body. Needs no key.
async fn request(args: &ConnectArgs) -> Result<(String, StatusCode, Vec<u8>), Failure> {
    // A file that cannot be read is reported even if it is not needed, as other commands do.
    let authorities = client::read_authorities(args)?;
    let (http, url) = if let Some(url) = client::explicit_url(args)? {
        (net::client(client::tls_config(authorities.as_ref())), url)
    } else {
        // The certificate may be issued for another name than the local address. The proof identifies the gateway anyway.
        let accept_any =
            tls::pinned_config(|_| true, &[tls::HTTP_1_1]).map_err(|error| Failure::new(Exit::Internal, error))?;
        let gateway = local_gateway::find_locally(&data_dir(&args.data)?)?;
        let http = net::client(accept_any);
        gateway.verify(&http).await.map_err(|reason| Failure::new(Exit::Unavailable, reason))?;
        (http, gateway.url)
    };
    let url = one_line(url.as_str().trim_end_matches('/')).into_owned();
    let unanswered = |reason: String| {
        Failure::new(Exit::Unavailable, format!("the gateway at {url} does not answer ({})", one_line(&reason)))
    };
    let sending = http.get(format!("{url}/health")).send().await;
    let mut response = sending.map_err(|error| unanswered(net::describe_send_error(&error)))?;
    let body = response.body().limit(MAX_RESPONSE_BYTES).await.map_err(|error| unanswered(error.to_string()))?;
    Ok((url, response.status(), body.to_vec()))
}
