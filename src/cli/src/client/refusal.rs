//! The reasons why a request to a gateway has no result, and their exit codes.

use std::time::Duration;

use actix_web::http::StatusCode;
use serde::Deserialize;
use url::Url;

use crate::{
    exit::{Exit, Failure},
    output::one_line,
};

/// The reason why a request has no result: an error response (RFC 9457), or no response at all.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayRefusal {
    /// The HTTP status; 0 if there is no response.
    #[serde(skip)]
    status: u16,
    title: String,
    detail: Option<String>,
    code: String,
}

impl GatewayRefusal {
    /// Reads an error response.
    pub(super) fn from_response(status: StatusCode, body: &[u8]) -> Self {
        let refusal = serde_json::from_slice(body);
        let refusal = refusal.unwrap_or_else(|_| Self::unavailable(format!("the gateway answered {status}")));
        Self { status: status.as_u16(), ..refusal }
    }

    /// Describes why a gateway cannot be asked.
    pub(super) fn unavailable(title: String) -> Self {
        Self { title, ..Self::default() }
    }

    /// Describes that the gateway does not answer in time.
    pub(super) fn timeout(base: &Url, limit: Duration) -> Self {
        Self::unavailable_at(base, &format!("did not answer within {}s", limit.as_secs()))
    }

    /// Describes why the gateway cannot be reached.
    pub(super) fn unreachable(base: &Url, reason: &str) -> Self {
        Self::unavailable_at(base, &format!("does not answer: {reason}"))
    }

    fn unavailable_at(base: &Url, problem: &str) -> Self {
        Self::unavailable(format!(
            "the gateway at {} {problem}. Is it running (`countersign serve`), and is this its address (--url)?",
            base.as_str().trim_end_matches('/')
        ))
    }

    /// Converts a failure of the stored login. Trying again may help if the provider is away.
    pub(super) fn from_login(failure: Failure) -> Self {
        let status = if failure.exit == Exit::NotAuthorized { StatusCode::UNAUTHORIZED.as_u16() } else { 0 };
        Self { status, ..Self::unavailable(failure.message) }
    }

    /// Adds the id or name in the path of a request to the message that there is no such object.
    pub(super) fn with_name(mut self, path: &[&str]) -> Self {
        if let ["changes" | "servers" | "webhooks" | "rules", name, ..] = path
            && let (404, "CHANGE_NOT_FOUND" | "NOT_FOUND") = (self.status, self.code.as_str())
            && let Some(detail) = self.detail.as_mut().filter(|detail| !detail.contains(*name))
        {
            *detail = format!("{}: {name}", detail.trim_end_matches('.'));
        }
        self
    }

    /// Returns `true` if trying again later may help.
    pub const fn is_temporary(&self) -> bool {
        matches!(self.status, 0 | 429 | 500..=599)
    }
}

impl From<GatewayRefusal> for Failure {
    fn from(refusal: GatewayRefusal) -> Self {
        let GatewayRefusal { status, title, detail, code } = refusal;
        // A forbidden action that is not about the key counts as a refusal.
        let exit = match (status, code.as_str()) {
            (0, _) => Exit::Unavailable,
            (_, "SELF_APPROVAL" | "POLICY_DENIED" | "EDIT_FORBIDDEN") => Exit::Failed,
            (401 | 403, _) => Exit::NotAuthorized,
            (404, "CHANGE_NOT_FOUND" | "NOT_FOUND") => Exit::NotFound,
            (409 | 410, _) => Exit::Conflict,
            (502..=504, _) => Exit::Unavailable,
            _ => Exit::Failed,
        };
        let message = detail.filter(|d| !d.is_empty()).unwrap_or(title);
        let message = if message.is_empty() { format!("the gateway answered {status}") } else { message };
        let code = if code.is_empty() { String::new() } else { format!(" ({})", one_line(&code)) };
        Self::new(exit, format!("{}{code}", one_line(message.trim_end_matches('.'))))
    }
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
            let failure = Failure::from(GatewayRefusal::from_response(status, body.as_bytes()));
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
        let failure = Failure::from(GatewayRefusal::from_response(StatusCode::BAD_GATEWAY, b"<html>"));
        assert!(failure.message.contains("502"), "{failure}");
    }
}
