//! Describes problem documents, which [`countersign_http::problem`] writes.

use countersign_domain::changes::Change;
use utoipa::ToSchema;

/// A problem document (RFC 9457).
#[derive(ToSchema)]
#[schema(as = Problem)]
#[serde(rename_all = "camelCase")]
pub struct ProblemDocument {
    pub r#type: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The error, for people.
    pub detail: String,
    /// The error, for programs.
    #[schema(examples("VERSION_CONFLICT", "UNAUTHORIZED", "CHANGE_NOT_FOUND"))]
    pub code: String,
    /// The number of seconds to wait, with `RATE_LIMITED`.
    pub retry_after: Option<u64>,
    /// The current change, with 409.
    pub change: Option<Change>,
    /// Further information: with `VALIDATION_FAILED` every fault, with `SIGN_IN_REQUIRED` the required sign-in, with `FORBIDDEN` for a
    /// code of another person both names.
    pub details: Option<ProblemDetails>,
}

#[derive(ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProblemDetails {
    pub errors: Option<Vec<ValidationFault>>,
    /// The longest time since the sign-in, in seconds.
    pub max_age: Option<u64>,
    /// The sufficient kinds of authentication.
    pub acr: Option<Vec<String>>,
    /// The person as whom the page is signed in.
    pub signed_in_as: Option<String>,
    /// The person whom the code would sign in.
    pub sign_in_as: Option<String>,
}

/// A fault of a value.
#[derive(ToSchema)]
pub struct ValidationFault {
    /// A JSON pointer to the value.
    pub pointer: String,
    pub rule: String,
    pub message: String,
}
