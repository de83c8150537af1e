//! Content in results: URIs as clients know them, and nothing that the client's revision lacks.
//!
//! Content that stays unchanged is not copied.

use std::borrow::Cow;

use serde_json::Value;

use countersign_protocol::{
    Revision,
    json::{MemberEdit, edit, map_elements, member, string},
};

/// Changes content for one client.
#[derive(Clone, Copy, Debug)]
pub struct ContentAdapter<'a> {
    /// The prefix of exposed URIs; empty if the upstream's own URIs are used.
    pub scheme: &'a str,
    /// The client's revision, if the upstream's has more than it.
    pub older: Option<Revision>,
}

impl ContentAdapter<'_> {
    /// Nothing has to be changed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.scheme.is_empty() && self.older.is_none()
    }

    /// The `content` of a tool's result, or `None` if it stays as it is.
    #[must_use]
    pub fn blocks(&self, array: &str) -> Option<String> {
        if self.is_idle() { None } else { map_elements(array, |block| self.block(block)) }
    }

    /// The `messages` of a prompt.
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

    /// The `contents` of a resource.
    #[must_use]
    pub fn contents(&self, array: &str) -> Option<String> {
        if self.is_idle() { None } else { map_elements(array, |contents| self.resource(contents)) }
    }

    /// One block of content.
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
            .and_then(|annotations| dropped(annotations, "lastModified"));
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

    /// The contents of a resource, embedded or read.
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

    /// The exposed form of an object's `uri`, as JSON text.
    fn uri(&self, object: &str) -> Option<String> {
        let scheme = Some(self.scheme).filter(|scheme| !scheme.is_empty())?;
        let own = string(member(object, "uri")?)?;
        Some(Value::from(format!("{scheme}{own}")).to_string())
    }

    /// A link in words, for clients that know none.
    fn link(&self, block: &str) -> String {
        let uri = member(block, "uri").and_then(string).unwrap_or_default();
        let name = member(block, "title").or_else(|| member(block, "name")).and_then(string).unwrap_or_default();
        let about = member(block, "description").and_then(string).unwrap_or_default();
        let scheme = self.scheme;
        format!("[resource {scheme}{uri} {name}{}{about}]", if about.is_empty() { "" } else { ": " })
    }
}

/// A text block, as JSON.
#[must_use]
pub fn text(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, Value::from(text))
}

fn mime(block: &str) -> Cow<'_, str> {
    member(block, "mimeType").and_then(string).unwrap_or_default()
}

fn dropped(object: &str, key: &str) -> Option<String> {
    member(object, key).map(|_| edit(object, &[(key, MemberEdit::Drop)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tailor(scheme: &str, older: Option<Revision>) -> ContentAdapter<'_> {
        ContentAdapter { scheme, older }
    }

    #[test]
    fn uris_are_exposed_where_they_stand() {
        let tailor = tailor("fs+", None);
        let blocks = r#"[ {"type":"text","text":"file:///a","n":1.0}, {"uri" : "file:///\u0061","type":"resource_link"},{"type":"resource","resource":{"text":"", "uri":"file:///b"}} ]"#;
        let expected = r#"[ {"type":"text","text":"file:///a","n":1.0}, {"uri" : "fs+file:///a","type":"resource_link"},{"type":"resource","resource":{"text":"", "uri":"fs+file:///b"}} ]"#;
        assert_eq!(tailor.blocks(blocks).as_deref(), Some(expected));
        assert_eq!(tailor.blocks(r#"[{"type":"text","text":"x"}]"#), None);
        let contents = r#"[{"uri":"file:///a","text":"x","_meta":{"k":1}}]"#;
        assert_eq!(tailor.contents(contents).unwrap(), contents.replace("file", "fs+file"));
        let messages = r#"[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b","text":""}}}]"#;
        assert_eq!(tailor.messages(messages).unwrap(), messages.replace("a:b", "fs+a:b"));
    }

    #[test]
    fn older_clients_get_what_they_know() {
        let audio = r#"{"type":"audio","data":"AA==","mimeType":"audio/wav"}"#;
        let link = r#"{"type":"resource_link","uri":"a:b","name":"n","title":"T","icons":[],"description":"d"}"#;
        let noted = r#"{"type":"text","text":"x","annotations":{"priority":1,"lastModified":"y"},"_meta":{}}"#;
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
            (R::V2025_03_26, noted, Some(r#"{"type":"text","text":"x","annotations":{"priority":1}}"#)),
            (R::V2025_06_18, noted, None),
        ] {
            assert_eq!(tailor("", Some(revision)).block(block).as_deref(), expected, "{revision:?} {block}");
        }
    }
}
