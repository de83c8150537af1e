//! The gateway's resources: a change, the caller's open changes, and the gateway itself (JSON).

use std::sync::Arc;

use async_trait::async_trait;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    GatewayTools,
    calls::open_states,
    view::{ChangeView, ListedChange},
};
use crate::{ChangeFilter, MAX_ID_BYTES};
use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::{ErrorKind, McpError, Revision};
use countersign_provider::{
    CallContext, Completion, CompletionRef, Module, ResourceDef, ResourceTemplateDef, ResourceText, text::cut_uri,
};

pub(super) const CHANGE_SCHEME: &str = "change://";
pub(super) const GATEWAY_SCHEME: &str = "countersign://";
pub(super) const OPEN_CHANGES_URI: &str = "countersign://changes";
const GATEWAY_URI: &str = "countersign://gateway";
pub(super) const CHANGE_TEMPLATE: &str = "change://{id}";
const JSON_TYPE: &str = "application/json";
/// The maximum number of changes in one resource or completion.
const MAX_LISTED_CHANGES: usize = 100;

pub(super) fn list() -> Vec<ResourceDef> {
    let def = |uri: &str, name: &str, title: &str, description: &str| ResourceDef {
        uri: uri.to_owned(),
        name: name.to_owned(),
        title: title.to_owned(),
        description: description.to_owned(),
        mime_type: JSON_TYPE.to_owned(),
        raw: None,
    };
    vec![
        def(
            OPEN_CHANGES_URI,
            "pending-changes",
            "Your open changes",
            "The changes that you proposed and that have not ended: pending, stale, approved, executing, of unknown outcome.",
        ),
        def(
            GATEWAY_URI,
            "gateway",
            "The gateway",
            "Name, version and protocol revisions of this gateway, and how writes are handled.",
        ),
    ]
}

pub(super) fn templates() -> Vec<ResourceTemplateDef> {
    vec![ResourceTemplateDef {
        uri_template: CHANGE_TEMPLATE.to_owned(),
        name: "change".to_owned(),
        title: "Change".to_owned(),
        description:
            "A change that you proposed: its status, diff and decisions. Subscribe to it to be notified of the decision."
                .to_owned(),
        mime_type: JSON_TYPE.to_owned(),
        raw: None,
    }]
}

pub(super) fn change_uri(id: &str) -> String {
    format!("{CHANGE_SCHEME}{id}")
}

fn unknown_resource(uri: &str) -> McpError {
    McpError::new(ErrorKind::ResourceNotFound, "The gateway has no such resource.").with("uri", cut_uri(uri))
}

fn json_text(uri: &str, value: &impl Serialize) -> Result<Vec<ResourceText>, McpError> {
    let text = serde_json::to_string(value)
        .map_err(|_| McpError::new(ErrorKind::Internal, "The resource could not be written."))?;
    Ok(vec![ResourceText { uri: uri.to_owned(), mime_type: JSON_TYPE.to_owned(), text }])
}

/// Returns the id in a `change://` URI; `None` if it is not a valid id.
fn change_id(uri: &str) -> Option<String> {
    let id = percent_decode_str(uri.strip_prefix(CHANGE_SCHEME)?).decode_utf8().ok()?;
    let is_plain = id.len() <= MAX_ID_BYTES && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    (is_plain && !id.is_empty()).then(|| id.into_owned())
}

impl GatewayTools {
    /// Returns the caller's newest changes in these states, or in any if there are none.
    async fn own_changes(&self, ctx: &CallContext, states: Vec<ChangeState>) -> Result<Vec<Arc<Change>>, McpError> {
        let filter = ChangeFilter { states, principals: vec![ctx.principal.name.clone()], ..ChangeFilter::default() };
        Ok(self.changes.list(filter, MAX_LISTED_CHANGES, None).await?.items)
    }

    /// Returns the change that a URI names, if the caller may see it.
    async fn change_for_uri(&self, uri: &str, ctx: &CallContext) -> Result<Arc<Change>, McpError> {
        let id = change_id(uri).ok_or_else(|| unknown_resource(uri))?;
        let found = self.visible_change(&id, &ctx.principal).await;
        found.map_err(|error| if error.kind == ErrorKind::ChangeNotFound { unknown_resource(uri) } else { error })
    }

    fn describe_gateway(&self) -> Value {
        let revisions: Vec<&str> = Revision::ALL.iter().map(|r| r.as_str()).collect();
        json!({
            "name": "countersign",
            "version": env!("CARGO_PKG_VERSION"),
            "protocolRevisions": revisions,
            "providers": (self.count_providers)(),
            "maxWaitSeconds": self.max_wait.as_secs(),
            "writes": "A write may become a pending change. It is applied only after a person has approved it; follow it \
                       with get_change or wait_for_change, or by reading or subscribing to change://{id}.",
        })
    }
}

#[async_trait]
impl Module for GatewayTools {
    async fn read_resource(&self, uri: &str, ctx: &CallContext) -> Result<Vec<ResourceText>, McpError> {
        match uri {
            OPEN_CHANGES_URI => {
                let open = self.own_changes(ctx, open_states()).await?;
                let lines: Vec<ListedChange<'_>> = open.iter().map(|change| ListedChange::new(change)).collect();
                json_text(uri, &json!({ "changes": lines }))
            }
            GATEWAY_URI => json_text(uri, &self.describe_gateway()),
            _ => {
                let change = self.change_for_uri(uri, ctx).await?;
                json_text(uri, &ChangeView::new(&change))
            }
        }
    }

    async fn check_subscription(&self, uri: &str, ctx: &CallContext) -> Result<(), McpError> {
        match uri {
            OPEN_CHANGES_URI | GATEWAY_URI => Ok(()),
            _ => self.change_for_uri(uri, ctx).await.map(drop),
        }
    }

    /// Completes the id in the template of a change.
    async fn complete(
        &self,
        reference: &CompletionRef,
        argument: (&str, &str),
        _: &Map<String, Value>,
        ctx: &CallContext,
    ) -> Result<Completion, McpError> {
        let is_change_id =
            matches!(reference, CompletionRef::ResourceTemplate(uri) if uri == CHANGE_TEMPLATE) && argument.0 == "id";
        if !is_change_id {
            return Err(McpError::new(ErrorKind::InvalidParams, "The gateway has no such argument to complete."));
        }
        let changes = self.own_changes(ctx, Vec::new()).await?;
        let has_more = changes.len() == MAX_LISTED_CHANGES;
        let values: Vec<String> =
            changes.iter().map(|c| c.id.clone()).filter(|id| id.starts_with(argument.1)).collect();
        // Older changes were not counted, so there is no total.
        let total = (!has_more).then_some(values.len() as u64);
        Ok(Completion { values, total, has_more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_ids_are_looked_up() {
        assert_eq!(change_id("change://chg_a-b").as_deref(), Some("chg_a-b"));
        assert_eq!(change_id("change://chg%5Fa").as_deref(), Some("chg_a"));
        for bad in ["change://", "change://a/b", "change://%ff", "change://a%00", "change://a?b", "changes://a", "x"] {
            assert_eq!(change_id(bad), None, "{bad}");
        }
        assert_eq!(change_id(&format!("change://{}", "a".repeat(65))), None);
    }
}
