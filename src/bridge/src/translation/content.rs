//! Adapts the content of results to a client: exposes URIs, and removes or replaces what the client's revision lacks.
//!
//! Unchanged content is not copied.

use std::borrow::Cow;

use serde_json::Value;

use countersign_protocol::{
    Revision,
    json::{MemberEdit, edit, map_elements, member, string},
};

/// Adapts content for one client.
#[derive(Clone, Copy, Debug)]
pub struct ContentAdapter<'a> {
    /// The prefix of exposed URIs; empty if the upstream's own URIs are used.
    pub scheme: &'a str,
    /// The client's revision, if it is older than the upstream's.
    pub older: Option<Revision>,
}

impl ContentAdapter<'_> {
    /// Returns `true` if no content has to be changed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.scheme.is_empty() && self.older.is_none()
    }

    /// Adapts the `content` of a tool result. Returns `None` if it stays unchanged, like all methods here.
    #[must_use]
    pub fn blocks(&self, array: &str) -> Option<String> {
        if self.is_idle() { None } else { map_elements(array, |block| self.block(block)) }
    }

    /// Adapts the `messages` of a prompt.
    #[must_use]
    pub fn messages(&self, array: &str) -> Option<String> {
        if self.is_idle() {
            return None;
        }
        map_elements(array, |message| {
            let content = self.block(member(message, "content")?)?;
            Some(edit(message, &[("content", MemberEdit::Replace(&content))]))
        })
    }

    /// Adapts the `contents` of a resource.
    #[must_use]
    pub fn contents(&self, array: &str) -> Option<String> {
        if self.is_idle() { None } else { map_elements(array, |contents| self.resource(contents)) }
    }

    /// Adapts one block of content.
    #[must_use]
    pub fn block(&self, block: &str) -> Option<String> {
        let kind = member(block, "type").and_then(string).unwrap_or_default();
        let rules = self.older.map(Revision::rules);
        if let Some(rules) = rules {
            match kind.as_ref() {
                "audio" if !rules.annotations => return Some(text(&format!("[audio, {}]", mime(block)))),
                "resource_link" if !rules.structured_content => return Some(text(&self.link(block))),
                _ => {}
            }
        }
        let annotations = rules
            .filter(|rules| !rules.structured_content)
            .and_then(|_| member(block, "annotations"))
            .and_then(|annotations| without_member(annotations, "lastModified"));
        let resource = match kind.as_ref() {
            "resource" => member(block, "resource").and_then(|resource| self.resource(resource)),
            _ => None,
        };
        let uri = if kind == "resource_link" { self.uri(block) } else { None };
        let mut edits: Vec<(&str, MemberEdit<'_>)> = Vec::new();
        if let Some(annotations) = &annotations {
            edits.push(("annotations", MemberEdit::Replace(annotations)));
        }
        if let Some(resource) = &resource {
            edits.push(("resource", MemberEdit::Replace(resource)));
        }
        if let Some(uri) = &uri {
            edits.push(("uri", MemberEdit::Replace(uri)));
        }
        if let Some(rules) = rules {
            if !rules.structured_content && member(block, "_meta").is_some() {
                edits.push(("_meta", MemberEdit::Drop));
            }
            if !rules.icons && kind == "resource_link" && member(block, "icons").is_some() {
                edits.push(("icons", MemberEdit::Drop));
            }
        }
        (!edits.is_empty()).then(|| edit(block, &edits))
    }

    /// Adapts the contents of an embedded or read resource.
    fn resource(&self, resource: &str) -> Option<String> {
        let uri = self.uri(resource);
        let mut edits: Vec<(&str, MemberEdit<'_>)> = Vec::new();
        if let Some(uri) = &uri {
            edits.push(("uri", MemberEdit::Replace(uri)));
        }
        if self.older.is_some_and(|older| !older.rules().structured_content) && member(resource, "_meta").is_some() {
            edits.push(("_meta", MemberEdit::Drop));
        }
        (!edits.is_empty()).then(|| edit(resource, &edits))
    }

    /// Returns the exposed form of an object's `uri`, as JSON text.
    fn uri(&self, object: &str) -> Option<String> {
        let scheme = Some(self.scheme).filter(|scheme| !scheme.is_empty())?;
        let own_uri = string(member(object, "uri")?)?;
        Some(Value::from(format!("{scheme}{own_uri}")).to_string())
    }

    /// Describes a resource link as text, for clients that do not know links.
    fn link(&self, block: &str) -> String {
        let uri = member(block, "uri").and_then(string).unwrap_or_default();
        let name = member(block, "title").or_else(|| member(block, "name")).and_then(string).unwrap_or_default();
        let description = member(block, "description").and_then(string).unwrap_or_default();
        let scheme = self.scheme;
        format!("[resource {scheme}{uri} {name}{}{description}]", if description.is_empty() { "" } else { ": " })
    }
}

/// Returns a text block as JSON.
#[must_use]
pub fn text(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, Value::from(text))
}

fn mime(block: &str) -> Cow<'_, str> {
    member(block, "mimeType").and_then(string).unwrap_or_default()
}

fn without_member(object: &str, key: &str) -> Option<String> {
    member(object, key).map(|_| edit(object, &[(key, MemberEdit::Drop)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(scheme: &str, older: Option<Revision>) -> ContentAdapter<'_> {
        ContentAdapter { scheme, older }
    }

    #[test]
    fn uris_get_exposed_form_in_all_content() {
        let adapter = adapter("fs+", None);
        let blocks = r#"[ {"type":"text","text":"file:///a","n":1.0}, {"uri" : "file:///\u0061","type":"resource_link"},{"type":"resource","resource":{"text":"", "uri":"file:///b"}} ]"#;
        let expected = r#"[ {"type":"text","text":"file:///a","n":1.0}, {"uri" : "fs+file:///a","type":"resource_link"},{"type":"resource","resource":{"text":"", "uri":"fs+file:///b"}} ]"#;
        assert_eq!(adapter.blocks(blocks).as_deref(), Some(expected));
        assert_eq!(adapter.blocks(r#"[{"type":"text","text":"x"}]"#), None);
        let contents = r#"[{"uri":"file:///a","text":"x","_meta":{"k":1}}]"#;
        assert_eq!(adapter.contents(contents).unwrap(), contents.replace("file", "fs+file"));
        let messages = r#"[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b","text":""}}}]"#;
        assert_eq!(adapter.messages(messages).unwrap(), messages.replace("a:b", "fs+a:b"));
    }

    #[test]
    fn content_unknown_to_older_client_is_replaced() {
        let audio = r#"{"type":"audio","data":"AA==","mimeType":"audio/wav"}"#;
        let link = r#"{"type":"resource_link","uri":"a:b","name":"n","title":"T","icons":[],"description":"d"}"#;
        let annotated = r#"{"type":"text","text":"x","annotations":{"priority":1,"lastModified":"y"},"_meta":{}}"#;
        use Revision as R;
        for (revision, block, expected) in [
            (R::V2024_11_05, audio, Some(r#"{"type":"text","text":"[audio, audio/wav]"}"#)),
            (R::V2025_03_26, audio, None),
            (R::V2025_03_26, link, Some(r#"{"type":"text","text":"[resource a:b T: d]"}"#)),
            (
                R::V2025_06_18,
                link,
                Some(r#"{"type":"resource_link","uri":"a:b","name":"n","title":"T","description":"d"}"#),
            ),
            (R::V2025_11_25, link, None),
            (R::V2025_03_26, annotated, Some(r#"{"type":"text","text":"x","annotations":{"priority":1}}"#)),
            (R::V2025_06_18, annotated, None),
        ] {
            assert_eq!(adapter("", Some(revision)).block(block).as_deref(), expected, "{revision:?} {block}");
        }
    }
}
