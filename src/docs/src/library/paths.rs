//! Rules for the paths of documents.

use percent_encoding::{AsciiSet, CONTROLS};

use crate::text::has_markdown_extension;
use countersign_domain::changes::visible::has_hidden;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::text::{invalid_argument, one_line};

/// The maximum number of bytes of a path.
const MAX_PATH_BYTES: usize = 1000;
/// The maximum number of bytes of one part of a path.
const MAX_PART_BYTES: usize = 200;
/// The maximum depth of folders.
pub(super) const MAX_DEPTH: usize = 32;

/// Characters of a path that are percent-encoded in a URI (RFC 3986, section 3.3).
pub(super) const URI_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Checks the path of a document below the folder of the documents, and returns it. Each document has only one path, so that the
/// conditions of rules can compare paths as text.
///
/// # Errors
/// `VALIDATION_FAILED` if it is not the path of a document.
pub(super) fn check_path(path: &str) -> Result<&str, McpError> {
    let invalid = |problem: &str| {
        let message = format!("{} is not the path of a document: {problem}.", one_line(path, 200));
        Err(invalid_argument("/path", "path", message))
    };
    if path.len() > MAX_PATH_BYTES {
        return invalid("it is too long");
    }
    if path.starts_with('/') || path.starts_with('~') {
        return invalid("write it relative to the folder of the documents");
    }
    if has_hidden(path) || path.contains(|c: char| c.is_control() || matches!(c, '\\' | ':')) {
        return invalid("it has hidden or control characters, a backslash or a colon");
    }
    let parts: Vec<&str> = path.split('/').collect();
    for part in &parts {
        match *part {
            "" | "." | ".." => return invalid("it has a part that is empty, `.` or `..`"),
            part if part.starts_with('.') => return invalid("a part begins with a dot"),
            part if part.len() > MAX_PART_BYTES => return invalid("a part is too long"),
            part if part.trim() != part || part.ends_with('.') => {
                return invalid("a part begins or ends with a space or a dot");
            }
            _ => {}
        }
    }
    match parts.last() {
        Some(name) if has_markdown_extension(name) => {}
        _ => return invalid("its name ends neither in .md nor in .markdown"),
    }
    if parts.len() > MAX_DEPTH {
        return invalid("it has too many parts");
    }
    Ok(path)
}

/// Returns the error for a file of the project that could not be read or written.
pub(super) fn file_error(action: &str, path: &str, error: &std::io::Error) -> McpError {
    let message = format!("{} could not be {action}: {}", one_line(path, 200), io_error_reason(error));
    McpError::new(ErrorKind::FileSystem, message).with("path", path)
}

/// Returns the error for a file that was written or removed, although a crash may still undo that.
pub(super) fn unsynced_error(action: &str, path: &str, error: &std::io::Error) -> McpError {
    let message = format!(
        "{} was {action}, but a crash may undo that, because its folder could not be synced: {}",
        one_line(path, 200),
        io_error_reason(error)
    );
    McpError::new(ErrorKind::FileSystem, message).with("path", path).with("outcome", "unknown")
}

/// Returns the error for a file that has changed since its write was planned.
pub(super) fn stale_error(path: &str) -> McpError {
    let message = format!("{} was changed by somebody else meanwhile, so it was left as it is", one_line(path, 200));
    McpError::new(ErrorKind::ChangeStale, message).with("path", path).with("outcome", "not_applied")
}

/// Describes an I/O error without the system's error number and without paths of the machine. A text of the gateway's own is
/// kept.
fn io_error_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::StorageFull => "no space is left".to_owned(),
        kind => error.get_ref().map_or_else(|| kind.to_string(), |own_text| own_text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_its_own_reason_and_no_system_text() {
        let message = |error: &std::io::Error| file_error("read", "a.md", error).message.to_string();
        let own_error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "a symbolic link is on its path");
        assert_eq!(message(&own_error), "a.md could not be read: a symbolic link is on its path");
        let system_error = std::io::Error::from_raw_os_error(20);
        assert_eq!(message(&system_error), "a.md could not be read: not a directory");
    }

    #[test]
    fn path_of_a_document_is_unchanged() {
        for path in ["a.md", "problems/a b.md", "Ärger/é.MARKDOWN", "a/%2e%2e/b.md"] {
            assert_eq!(check_path(path).unwrap(), path);
        }
    }

    #[test]
    fn hostile_paths_are_refused() {
        let long_part = format!("{}.md", "x".repeat(250));
        let long = format!("{}a.md", "x/".repeat(600));
        let deep = format!("{}a.md", "x/".repeat(40));
        let mut hostile: Vec<String> = [
            "",
            ".",
            "..",
            "/",
            "//",
            "a",
            "a.txt",
            ".md",
            ".hidden.md",
            "a/.git/b.md",
            ".countersign-x.tmp",
            "a/",
            "a/.md",
            "../a.md",
            "a/../b.md",
            "a/../../b.md",
            "./../a.md",
            "./a.md",
            "a/./b.md",
            "a//b.md",
            "/etc/passwd.md",
            "/a.md",
            "//host/a.md",
            "~/a.md",
            "~root/a.md",
            "C:\\a.md",
            "C:a.md",
            "c:/a.md",
            "\\\\host\\a.md",
            "a\\b.md",
            "..\\a.md",
            "a\0.md",
            "a.md\0",
            "a\n.md",
            "a\r.md",
            "a\t.md",
            "a\u{7f}.md",
            "a\u{1b}[31m.md",
            "\u{feff}a.md",
            "a\u{200b}.md",
            "a\u{202e}dm.md",
            "a\u{2066}.md",
            "a\u{200d}.md",
            "a\u{ad}.md",
            "file:///a.md",
            "docs://x/a.md",
            " a.md",
            "a /b.md",
            "a./b.md",
            "a.md ",
            "a.md.",
            "a.md/",
            "a.md/..",
            "...",
            ".../a.md",
            "a/...md/..",
            "a.md?x",
            "a.md#x",
            "a.mdx",
            "a.md~",
            "a.md.exe",
            "a.html",
            "schemas/x.yaml",
            "..a/../b.md",
            "./",
            "./.",
            "././a.md",
            "a/ /b.md",
            "a/\u{a0}/../b.md",
            "\u{2028}a.md",
            "a\u{2029}.md",
            "a\u{85}.md",
            "%2e%2e/..",
            "..%2f..",
            "..;/a.md",
            "....//a.md",
            "a/..",
            "a/.",
            "a/..md",
            "a/b/../../../c.md",
        ]
        .map(str::to_owned)
        .to_vec();
        hostile.extend([long_part, long, deep, "x".repeat(10_000), "é".repeat(600) + ".md"]);
        hostile.extend((1..32_u8).map(|byte| format!("a{}.md", char::from(byte))));
        assert!(hostile.len() >= 100, "{}", hostile.len());
        for path in hostile {
            let error = check_path(&path).expect_err(&path.escape_debug().to_string());
            assert_eq!(error.kind, ErrorKind::ValidationFailed);
        }
    }
}
