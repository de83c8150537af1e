//! Previews of modules' tools, and who may see them.

use serde_json::value::to_raw_value;

use super::{
    PreviewRequest,
    arguments::preview_arguments,
    compose::{self, ComputedPreview},
    fault::Fault,
};
use countersign_domain::{
    policy::Verdict,
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};

/// Previews a module's call. If the preview fails and the proposer may not read its data, the failure is shown to
/// reviewers as a preview, because its reason could reveal the data to the proposer.
pub(super) async fn preview_module_call(request: PreviewRequest<'_>) -> Result<ComputedPreview, McpError> {
    let PreviewRequest { directory, provider, tool, arguments, context } = request;
    let principal = Principal { role: Role::Agent, ..(*context.principal).clone() };
    let mut restricted = false;
    for (read_tool, read_arguments) in provider.preview_reads(tool, arguments)? {
        let encode_error = |_| McpError::new(ErrorKind::Internal, "the arguments of a call could not be written");
        let read_arguments = to_raw_value(&read_arguments).map_err(encode_error)?;
        restricted |= directory.verdict(provider.name(), read_tool, &principal, &read_arguments) != Verdict::Allow;
    }
    let mut computed = match provider.preview(tool, arguments, context).await {
        Ok(preview) => ComputedPreview { preview, transient_error: None, before: None },
        Err(error) if restricted && !error.kind.is_transient() => {
            let def = provider.tools().into_iter().find(|def| def.name == tool).ok_or_else(|| error.clone())?;
            let fault = Fault::from_error_result(tool, &error.message);
            compose::preview_of_failure(preview_arguments(provider.name(), tool, &def, arguments), fault)
        }
        Err(error) => return Err(error),
    };
    computed.preview.note.restricted = restricted;
    Ok(computed)
}
