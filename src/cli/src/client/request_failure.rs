//! The failures of requests to a gateway, with their exit codes.

use std::time::Duration;

use actix_web::http::StatusCode;
use serde::Deserialize;
use url::Url;

use crate::{
    exit::{Exit, Failure},
    output::one_line,
};

/// The problem document of an error response (RFC 9457).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: Option<String>,
    code: String,
}

/// Returns the failure for an error response. If there is no such object, its message has the id or name in the path of the
/// request.
pub(super) fn error_response(status: StatusCode, body: &[u8], path: &[&str]) -> Failure {
    let unreadable = || Problem { title: format!("the gateway answered {status}"), ..Problem::default() };
    let Problem { title, detail, code } = serde_json::from_slice(body).unwrap_or_else(|_| unreadable());
    let status = status.as_u16();
    // A forbidden action that is not about the key counts as a refusal.
    let exit = match (status, code.as_str()) {
        (_, "SELF_APPROVAL" | "POLICY_DENIED" | "EDIT_FORBIDDEN") => Exit::Failed,
        (401 | 403, _) => Exit::NotAuthorized,
        (404, "CHANGE_NOT_FOUND" | "NOT_FOUND") => Exit::NotFound,
        (409 | 410, _) => Exit::Conflict,
        (502..=504, _) => Exit::Unavailable,
        _ => Exit::Failed,
    };
    let detail = detail.filter(|detail| !detail.is_empty()).map(|detail| match path {
        ["changes" | "servers" | "webhooks" | "rules", name, ..]
            if exit == Exit::NotFound && !detail.contains(*name) =>
        {
            format!("{}: {name}", detail.trim_end_matches('.'))
        }
        _ => detail,
    });
    let message = detail.unwrap_or(title);
    let message = if message.is_empty() { format!("the gateway answered {status}") } else { message };
    let code = if code.is_empty() { String::new() } else { format!(" ({})", one_line(&code)) };
    let failure = Failure::new(exit, format!("{}{code}", one_line(message.trim_end_matches('.'))));
    Failure { is_temporary: matches!(status, 429 | 500..=599), ..failure }
}

/// Returns the failure for a gateway that cannot be asked.
pub(super) fn unavailable(reason: &str) -> Failure {
    let failure = Failure::new(Exit::Unavailable, one_line(reason.trim_end_matches('.')));
    Failure { is_temporary: true, ..failure }
}

/// Returns the failure for a stored login that gives no token. Trying again may help if the provider is away.
pub(super) fn unusable_login(failure: &Failure) -> Failure {
    let unavailable = unavailable(&failure.message);
    match failure.exit {
        Exit::NotAuthorized => Failure { exit: Exit::NotAuthorized, is_temporary: false, ..unavailable },
        _ => unavailable,
    }
}

/// Returns the failure for a gateway that does not answer in time.
pub(super) fn timeout(base: &Url, limit: Duration) -> Failure {
    unavailable_at(base, &format!("did not answer within {}s", limit.as_secs()))
}

/// Returns the failure for a gateway that cannot be reached.
pub(super) fn unreachable(base: &Url, reason: &str) -> Failure {
    unavailable_at(base, &format!("does not answer: {reason}"))
}

fn unavailable_at(base: &Url, problem: &str) -> Failure {
    unavailable(&format!(
        "the gateway at {} {problem}. Is it running (`countersign serve`), and is this its address (--url)?",
        base.as_str().trim_end_matches('/')
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_become_exit_codes() {
        let exit = |status: u16, code: &str| {
            let body =
                format!("{{\"title\":\"T\",\"detail\":\"what\\u001b[2J\",\"code\":\"{code}\",\"status\":{status}}}");
            let status = StatusCode::from_u16(status).unwrap();
            let failure = error_response(status, body.as_bytes(), &["me"]);
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
        let failure = error_response(StatusCode::BAD_GATEWAY, b"<html>", &["me"]);
        assert!(failure.message.contains("502"), "{failure}");
    }
}
