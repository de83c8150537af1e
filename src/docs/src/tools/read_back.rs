//! Reads a document again after a write, to compare it with what was approved. A deletion is not read back, because its
//! preview lists documents and shows no values to compare.

use super::{args::TenantSelector, tenant::resolve_checked_out};
use crate::{
    library::Library,
    text::{self, front_matter},
};
use countersign_protocol::McpError;
use countersign_provider::PresentValues;

/// Returns the text of a document, or `None` if there is none.
pub(crate) fn document_text(
    library: &Library,
    selector: &TenantSelector,
    path: &str,
) -> Result<Option<String>, McpError> {
    let indexed = resolve_checked_out(library, selector)?;
    let files = &indexed.project.files;
    let bytes = files.read(&files.check_path(path)?)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the fields that the preview of a new promotion level shows, for a document with this text.
pub(crate) fn promotion_values(text: Option<&str>) -> PresentValues {
    let level = text.map(|text| <&str>::from(text::level(&front_matter::parse_fields(text).unwrap_or_default())));
    vec![
        ("promotion_level", level.map(str::to_owned)),
        ("file.front_matter", text.and_then(front_matter::block).map(str::to_owned)),
    ]
}
