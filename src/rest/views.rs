//! What the doors show of parts that others own: sessions and providers.

use actix_web::{HttpResponse, web};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::{Caller, RestState, json_ok};
use crate::upstream::UpstreamStatus;

/// A live session, as people see it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// Only its beginning ever leaves: the whole id lets whoever holds it use the session.
    #[serde(serialize_with = "beginning")]
    pub id: String,
    /// `http`, `websocket`, `stdio` or `sse`.
    pub transport: String,
    pub revision: Option<String>,
    pub client_name: Option<String>,
    pub client_version: Option<String>,
    /// The principal's name.
    pub principal: String,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
    /// Requests that are being answered.
    pub in_flight: usize,
}

fn beginning<S: Serializer>(id: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}…", id.chars().take(8).collect::<String>()))
}

/// What calls can be routed to.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderInfo {
    pub name: String,
    /// `module` or `upstream`.
    pub kind: &'static str,
    /// `up` or `down`; of an upstream also `connecting`.
    pub status: &'static str,
    pub tools: usize,
    pub resources: usize,
    pub prompts: usize,
    /// What of it is not as it should be and stops nobody: names that clients refuse, or that others have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How an upstream stands; none for a module.
    #[serde(flatten)]
    pub upstream: Option<UpstreamStatus>,
}

/// Lists sessions; implemented by the session registry.
pub trait SessionsView: Send + Sync + 'static {
    fn sessions(&self) -> Vec<SessionInfo>;
}

/// Lists providers; implemented by the router.
pub trait ProvidersView: Send + Sync + 'static {
    fn providers(&self) -> BoxFuture<'_, Vec<ProviderInfo>>;
}

/// `GET /api/sessions`, newest first.
pub async fn sessions(_: Caller, state: web::Data<RestState>) -> HttpResponse {
    #[derive(Serialize)]
    struct Answer {
        sessions: Vec<SessionInfo>,
    }
    let mut sessions = state.sessions.sessions();
    sessions.sort_by_key(|session| std::cmp::Reverse(session.created_at));
    json_ok(&Answer { sessions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_never_leaves_whole() {
        let info = SessionInfo {
            id: "V1StGXR8_Z5jdHi6B-myTabcdefghijk".into(),
            transport: "http".into(),
            revision: Some("2025-11-25".into()),
            client_name: None,
            client_version: None,
            principal: "local-agent".into(),
            created_at: Timestamp::UNIX_EPOCH,
            last_active_at: Timestamp::UNIX_EPOCH,
            in_flight: 2,
        };
        let json = serde_json::to_value(&info).unwrap();
        assert_eq!(json["id"], "V1StGXR8…");
        assert_eq!(json["inFlight"], 2);
        assert_eq!(json["clientName"], serde_json::Value::Null);
    }
}
