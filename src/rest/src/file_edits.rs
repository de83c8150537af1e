//! Edits the configuration file for the dashboard, and checks who may do so.

use std::sync::Arc;

use actix_web::{HttpRequest, web};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Problem, run_uninterrupted};
use countersign_auth::codes::local_reviewer;
use countersign_config::{AuthMode, edit::EditError, is_loopback_host};
use countersign_domain::principal::{Principal, Role};
use countersign_http::connections::Connection;
use countersign_protocol::ErrorKind;
use countersign_reload::{
    Reloader,
    config_file::{ConfigFile, FileError},
    file_edits::{EditSummary, EditingState, FileChange, FileEditError},
};

/// The state of the configuration file, for a page that shows a part of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileState {
    editing: EditingState,
    /// `true` if the caller may edit the file here.
    pub may_edit: bool,
    #[schema(required)]
    file: Option<String>,
    /// The version of the file, on which an edit is based.
    #[schema(required)]
    version: Option<String>,
}

impl FileState {
    /// Reads the file, if there is one. It is also read where it cannot be edited, so that pages can show what to write.
    pub(super) async fn read(
        principal: &Arc<Principal>,
        request: &HttpRequest,
        reloader: &web::Data<Reloader>,
    ) -> Result<(Self, Option<ConfigFile>), Problem> {
        let editing = reloader.editing();
        let config_file = match editing {
            EditingState::NoFile => None,
            _ => Some(reloader.read_file().await.map_err(to_problem)?),
        };
        let state = Self {
            editing,
            may_edit: editing == EditingState::On && Editor::new(principal, request, reloader).is_ok(),
            file: reloader.file().map(|file| file.display().to_string()),
            version: config_file.as_ref().map(ConfigFile::version),
        };
        Ok((state, config_file))
    }
}

/// Edits the file, even if the client disconnects meanwhile.
///
/// # Errors
/// Those of [`Reloader::edit_file`].
pub(super) async fn edit_file(
    reloader: &web::Data<Reloader>,
    changes: impl FileChange,
    version: String,
    by: String,
) -> Result<EditSummary, Problem> {
    let reloader = web::Data::clone(reloader);
    let edit = async move { reloader.edit_file(&changes, &version, &by).await };
    run_uninterrupted(edit, "the edit was not carried out").await?.map_err(to_problem)
}

/// Checks that the configuration file is edited here.
///
/// # Errors
/// `FORBIDDEN`
pub(super) fn check_editing_is_on(reloader: &Reloader) -> Result<(), Problem> {
    let reason = match reloader.editing() {
        EditingState::On => return Ok(()),
        EditingState::Off => "the configuration file is not edited here: `dashboard.edit` is off",
        EditingState::SharedStore => {
            "the configuration file is not edited here: other gateways of this store have files of their own"
        }
        EditingState::NoFile => "the gateway reads no configuration file",
    };
    Err(Problem::new(ErrorKind::Forbidden, reason))
}

/// A person who may edit the configuration file: an admin, or a person at this machine who signed in with `countersign open`,
/// because only the owner of the file can sign in that way.
pub(super) struct Editor<'a> {
    pub principal: &'a Arc<Principal>,
    pub reloader: &'a web::Data<Reloader>,
    /// `true` if the request comes from this machine itself.
    pub is_at_machine: bool,
}

impl<'a> Editor<'a> {
    /// Returns the sender of a request if they are an editor, whether or not the file can be edited here. Where it cannot,
    /// editors still see the lines to write by hand.
    ///
    /// # Errors
    /// `FORBIDDEN`
    pub(super) fn new(
        principal: &'a Arc<Principal>,
        request: &HttpRequest,
        reloader: &'a web::Data<Reloader>,
    ) -> Result<Self, Problem> {
        let is_at_machine = is_at_machine(request, reloader);
        let is_own_sign_in = || {
            principal.role == Role::Reviewer
                && principal.key_id.is_none()
                && principal.claims.is_none()
                && principal.name == local_reviewer()
        };
        if principal.role == Role::Admin || (is_at_machine && is_own_sign_in()) {
            return Ok(Self { principal, reloader, is_at_machine });
        }
        Err(Problem::new(ErrorKind::Forbidden, "editing the configuration file needs the role admin"))
    }

    /// Edits the file as this person.
    ///
    /// # Errors
    /// Those of [`Reloader::edit_file`].
    pub(super) async fn edit_file(&self, change: impl FileChange, version: String) -> Result<EditSummary, Problem> {
        edit_file(self.reloader, change, version, self.principal.name.clone()).await
    }
}

/// The headers that proxies add, besides `X-Forwarded-*`.
const PROXY_HEADERS: [&str; 6] = ["forwarded", "via", "x-real-ip", "x-client-ip", "cf-connecting-ip", "true-client-ip"];

/// Returns `true` if the request comes from this machine itself in `auth.mode: local`, and not through a proxy.
fn is_at_machine(request: &HttpRequest, reloader: &Reloader) -> bool {
    let config = reloader.config();
    if config.auth.mode != AuthMode::Local || config.behind_tls_proxy {
        return false;
    }
    let peer = Connection::for_request(request).and_then(|connection| connection.peer).or_else(|| request.peer_addr());
    let is_from_proxy = |name: &str| name.starts_with("x-forwarded") || PROXY_HEADERS.contains(&name);
    let is_forwarded = request.headers().keys().any(|name| is_from_proxy(name.as_str()));
    let host = request.connection_info().host().to_owned();
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) && !is_forwarded && is_loopback_host(&host)
}

/// Converts the reason why an edit was not made into a problem.
pub(super) fn to_problem(error: FileEditError) -> Problem {
    let kind = match &error {
        FileEditError::File(FileError::Changed(_)) => ErrorKind::VersionConflict,
        FileEditError::File(FileError::Busy(_)) | FileEditError::NotRecorded(_) => ErrorKind::StoreUnavailable,
        FileEditError::Edit(EditError::NoSuchServer(_)) => ErrorKind::NotFound,
        FileEditError::NoFile => ErrorKind::Forbidden,
        FileEditError::File(_) | FileEditError::Edit(_) | FileEditError::Invalid(_) | FileEditError::Overridden(_) => {
            ErrorKind::ValidationFailed
        }
    };
    Problem::new(kind, error.to_string())
}
