//! Parses the URIs of resources as hostile input, and collects the URIs of resources that a write changes. Pure.

use percent_encoding::percent_decode_str;

use super::{arguments::EntityRef, model::Parent};

pub(super) const SCHEME: &str = "tracker://";
/// The maximum number of bytes of a URI that is parsed.
const MAX_URI_BYTES: usize = 256;

/// A resource that a URI names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Projects,
    Project(EntityRef),
    ProjectIssues(EntityRef),
    ProjectBoard(EntityRef),
    Issue(EntityRef),
    IssueComments(EntityRef),
    IssueHistory(EntityRef),
    People,
}

impl Resource {
    /// Parses a URI. Returns `None` if it is not exactly the URI of a resource, for instance if it has another scheme,
    /// a query, an empty segment or an invalid escape.
    pub fn parse(uri: &str) -> Option<Self> {
        if uri.len() > MAX_URI_BYTES {
            return None;
        }
        let segments: Vec<String> = uri.strip_prefix(SCHEME)?.split('/').map(decode).collect::<Option<_>>()?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match segments[..] {
            ["projects"] => Some(Self::Projects),
            ["people"] => Some(Self::People),
            ["projects", key] => EntityRef::parse_project(key).map(Self::Project),
            ["projects", key, "issues"] => EntityRef::parse_project(key).map(Self::ProjectIssues),
            ["projects", key, "board"] => EntityRef::parse_project(key).map(Self::ProjectBoard),
            ["issues", key] => EntityRef::parse_issue(key).map(Self::Issue),
            ["issues", key, "comments"] => EntityRef::parse_issue(key).map(Self::IssueComments),
            ["issues", key, "history"] => EntityRef::parse_issue(key).map(Self::IssueHistory),
            _ => None,
        }
    }
}

/// Decodes one segment. Rejects `?` and `#`, because no resource has a query or a fragment.
fn decode(segment: &str) -> Option<String> {
    if segment.contains(['?', '#']) {
        return None;
    }
    let bytes = segment.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        let is_hex_at = |offset: usize| bytes.get(index + offset).is_some_and(u8::is_ascii_hexdigit);
        if *byte == b'%' && !(is_hex_at(1) && is_hex_at(2)) {
            return None;
        }
    }
    percent_decode_str(segment).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// The resources that a write has changed. Each is named by its key and by its id, because clients may subscribe to
/// either.
#[derive(Debug, Default)]
pub(super) struct ChangedResources {
    pub uris: Vec<String>,
    /// Set if `resources/list` changes too.
    pub list_changed: bool,
}

impl ChangedResources {
    fn add(&mut self, uri: String) {
        if !self.uris.contains(&uri) {
            self.uris.push(uri);
        }
    }

    /// Adds parts of an entity: those that follow its name in a URI.
    fn add_parts(&mut self, entities: &str, id: &str, key: &str, parts: &[&str]) {
        for name in [key, id] {
            for part in parts {
                self.add(format!("{SCHEME}{entities}/{name}{part}"));
            }
        }
    }

    /// Adds an issue without its comments and history.
    pub fn add_issue_only(&mut self, id: &str, key: &str) {
        self.add_parts("issues", id, key, &[""]);
    }

    /// Adds an issue with its history.
    pub fn add_issue(&mut self, id: &str, key: &str) {
        self.add_issue_only(id, key);
        self.add_parts("issues", id, key, &["/history"]);
    }

    /// Adds the comments of an issue.
    pub fn add_comments(&mut self, id: &str, key: &str) {
        self.add_parts("issues", id, key, &["/comments"]);
    }

    /// Adds a parent, which shows the number of its children.
    pub fn add_parent(&mut self, parent: Option<&Parent>) {
        if let Some(parent) = parent {
            self.add_issue_only(&parent.id, &parent.key);
        }
    }

    /// Adds a project with its issues and board, and the list of projects, which shows its counts.
    pub fn add_project(&mut self, id: &str, key: &str) {
        self.add(format!("{SCHEME}projects"));
        self.add_parts("projects", id, key, &["", "/issues", "/board"]);
    }

    pub fn add_people(&mut self) {
        self.add(format!("{SCHEME}people"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Uuid;

    #[test]
    fn uris_are_decoded_strictly() {
        let key = |k: &str| EntityRef::Key(k.into());
        assert_eq!(Resource::parse("tracker://projects"), Some(Resource::Projects));
        assert_eq!(Resource::parse("tracker://projects/core/board"), Some(Resource::ProjectBoard(key("CORE"))));
        assert_eq!(Resource::parse("tracker://issues/%43ORE-1%32"), Some(Resource::Issue(key("CORE-12"))));
        assert_eq!(
            Resource::parse("tracker://issues/67e55044-10b1-426f-9247-bb680e5fe0c8/history"),
            Some(Resource::IssueHistory(EntityRef::Id(Uuid("67e55044-10b1-426f-9247-bb680e5fe0c8".into()))))
        );
        for bad in [
            "",
            "tracker:",
            "tracker://",
            "tracker:///projects",
            "tracker://projects/",
            "tracker://projects//board",
            "tracker://projects/CORE/board/",
            "tracker://projects/CORE?x=1",
            "tracker://projects/CORE#a",
            "tracker://issues/CORE-12%",
            "tracker://issues/CORE-12%4",
            "tracker://issues/CORE-12%zz",
            "tracker://issues/%ff%fe",
            "tracker://issues/CORE-12%2Fcomments",
            "tracker://issues/CORE-12%00",
            "tracker://issues/../projects",
            "tracker://issues/CORE-12/secrets",
            "file:///etc/passwd",
            "TRACKER://projects",
        ] {
            assert_eq!(Resource::parse(bad), None, "{bad}");
        }
        assert_eq!(Resource::parse(&format!("tracker://issues/{}", "A".repeat(100_000))), None);
    }

    proptest! {
        #[test]
        fn no_uri_panics(uri in "\\PC{0,80}", tail in "[a-zA-Z0-9%/?#.-]{0,60}") {
            let _ = Resource::parse(&uri);
            let _ = Resource::parse(&format!("tracker://{uri}"));
            let _ = Resource::parse(&format!("tracker://issues/{tail}"));
            let _ = Resource::parse(&format!("tracker://projects/{tail}"));
        }
    }
}
