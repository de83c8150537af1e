//! Adds, changes and removes servers in the configuration file, for admins, where `dashboard.edit` permits it.
//!
//! An edit names the version of the file that it is based on. Secrets go into the file only as references to variables, and
//! are never sent to a page. A command or an address that the file does not have yet waits for the consent of another person
//! before it is written, unless the edit comes from the machine itself.

use std::collections::BTreeSet;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Caller, Problem, Query,
    body::{Body, Submission},
    file_edits::{Editor, FileState, check_editing_is_on, to_problem},
    json_response, path_name,
    server_settings::{has_same_target, is_disabled, is_enabled, settings_from_form, with_old_secrets},
    trial_list::ServerTrials,
};
use countersign_config::edit::{
    self, ServerChange, Settings,
    hidden::hide_secrets,
    paste::{MAX_PASTE_BYTES, parse_servers},
    references::{self, replace_secrets, variables_in},
};
use countersign_domain::changes::visible::quoted;
use countersign_reload::{
    ConfigSource, Reloader,
    config_file::{ConfigFile, FileError},
    file_edits::{EditSummary, ServerChanges},
};

/// Maximum size in bytes of a body with servers.
const MAX_EDIT_BYTES: usize = MAX_PASTE_BYTES + 4096;

/// The servers of the configuration file.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ServerFile {
    #[serde(flatten)]
    state: FileState,
    /// `true` if the caller may test and save a server without anybody's consent.
    may_test: bool,
    /// The servers as they are written in the file, including disabled ones. Viewers get only their names.
    servers: Vec<ConfiguredServer>,
}

/// A server as it is written in the file.
#[derive(Serialize, ToSchema)]
struct ConfiguredServer {
    name: String,
    /// Its keys, with placeholders for values that could be secret.
    #[schema(value_type = Object)]
    settings: Settings,
}

/// Returns the servers of the configuration file, and whether they can be edited here.
///
/// Values that could be secret are replaced by `[secret]`. An edit that sends such a placeholder back keeps the value.
#[utoipa::path(get, path = "/api/server-file", operation_id = "getServerFile", responses(
    (status = 200, description = "The servers of the file", body = ServerFile)))]
pub async fn file(
    caller: Caller,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    let (state, read) = FileState::read(&caller.principal, &request, &reloader).await?;
    let may_read = caller.principal.role.may_decide();
    let servers = read.map(|file| list_servers(file.text(), may_read)).unwrap_or_default();
    let is_at_machine = Editor::new(&caller.principal, &request, &reloader).is_ok_and(|editor| editor.is_at_machine);
    let may_test = state.may_edit && is_at_machine;
    Ok(json_response(&ServerFile { state, may_test, servers }))
}

/// Returns the servers of the file, with their settings if the caller may see them.
fn list_servers(text: &str, with_settings: bool) -> Vec<ConfiguredServer> {
    let names = edit::server_names(text).unwrap_or_default();
    let server = |name: String| {
        let settings = edit::find_server(text, &name).ok().filter(|_| with_settings).unwrap_or_default();
        ConfiguredServer { name, settings: hide_secrets(&settings) }
    };
    names.into_iter().map(server).collect()
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AddServersRequest {
    /// The version of the file that was shown.
    version: String,
    /// An `mcpServers` block, one server or a `server.json`, as JSON or YAML.
    #[schema(max_length = 262144)]
    text: String,
    /// The name of a server that has none of its own.
    name: Option<String>,
    /// Only shows what would change.
    #[serde(default)]
    preview: bool,
}

impl Body for AddServersRequest {
    const MAX_BYTES: Option<usize> = Some(MAX_EDIT_BYTES);
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EditServerRequest {
    /// The version of the file that was shown.
    version: String,
    /// The keys of the server, as in the file.
    #[schema(value_type = Object)]
    settings: Settings,
    /// Only shows what would change.
    #[serde(default)]
    preview: bool,
}

impl Body for EditServerRequest {
    const MAX_BYTES: Option<usize> = Some(MAX_EDIT_BYTES);
}

/// The result of an edit, or of its preview.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct EditResult {
    #[serde(flatten)]
    summary: EditSummary,
    /// `true` if a command or an address waits for the consent of another person before it is written, or would after a preview.
    needs_consent: bool,
    servers: Vec<String>,
    /// The lines to write into the file by hand.
    yaml: String,
    /// The variables that the gateway's environment lacks. A server that needs one is disabled.
    unset_variables: Vec<String>,
    /// Notes about keys that were left out or replaced.
    notes: Vec<String>,
}

/// Adds servers to the configuration file.
///
/// Requires the role admin, or the sign-in of the gateway's own user at the machine, and `dashboard.edit`. References to variables
/// replace secrets in plain text. If the gateway does not have such a variable, the server is added as disabled. The response is
/// 409 if the file has another version. With `preview`, nothing is written, and the response shows the changed lines. A new
/// command or address is written once another person has consented (`needsConsent`, `GET /api/server-trials`), unless the request
/// comes from the machine itself in `auth.mode: local` or the server is disabled.
#[utoipa::path(post, path = "/api/servers", operation_id = "addServers", request_body = AddServersRequest,
    responses((status = 200, description = "The edit", body = EditResult), (status = 409)))]
pub async fn add(
    Submission { principal, body, .. }: Submission<AddServersRequest>,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    let editor = Editor::new(&principal, &request, &reloader)?;
    let servers = parse_servers(&body.text, body.name.as_deref()).map_err(Problem::invalid)?;
    let mut draft = EditDraft::begin(editor, body.version, body.preview).await?;
    let mut file_variables = variables_in(draft.file.text());
    for mut server in servers {
        let replaced = replace_secrets(&server.name, &mut server.settings, &file_variables);
        for reference in replaced {
            let (name, key, variable) = (&server.name, reference.key, reference.variable);
            server.notes.push(format!("the secret in {key} of {} is now ${{{variable}}}", quoted(name)));
        }
        draft.disable_without_variables(&mut server.settings, &BTreeSet::new());
        file_variables.extend(variables_in(&edit::to_yaml(&server.name, &server.settings)));
        draft.notes.append(&mut server.notes);
        draft.changes.push(ServerChange::Add { name: server.name, settings: server.settings });
    }
    draft.finish(&trials).await
}

/// Changes a server in the configuration file.
///
/// The server then has exactly these keys, and the lines of unchanged keys stay as they are. The rest is as for
/// `POST /api/servers`.
#[utoipa::path(put, path = "/api/servers/{name}", operation_id = "editServer", request_body = EditServerRequest,
    responses((status = 200, description = "The edit", body = EditResult), (status = 409)))]
pub async fn replace(
    Submission { principal, path_parameter: name, body }: Submission<EditServerRequest>,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    let editor = Editor::new(&principal, &request, &reloader)?;
    let mut draft = EditDraft::begin(editor, body.version, body.preview).await?;
    let old = edit::find_server(draft.file.text(), &name).map_err(|error| to_problem(error.into()))?;
    let mut masked_settings = settings_from_form(&name, body.settings, draft.file.text());
    let old_variables = variables_in(&edit::to_yaml(&name, &old));
    draft.disable_without_variables(&mut masked_settings, &old_variables);
    let settings = with_old_secrets(&masked_settings, &old)?;
    draft.changes.unmasked.push(ServerChange::Replace { name: name.clone(), settings });
    draft.changes.masked.push(ServerChange::Replace { name, settings: masked_settings });
    draft.finish(&trials).await
}

/// The parameters of a removal.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it only describes the parameters")]
pub struct RemovalParams {
    /// The version of the file that was shown.
    version: String,
    /// `true` to see only what would change.
    preview: Option<bool>,
}

/// Removes a server from the configuration file.
///
/// Requires the same rights as `POST /api/servers`, and has the same responses.
#[utoipa::path(delete, path = "/api/servers/{name}", operation_id = "removeServer", params(RemovalParams),
    responses((status = 200, description = "The edit", body = EditResult), (status = 409), (status = 422)))]
pub async fn remove(
    caller: Caller,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    let editor = Editor::new(caller.require_reviewer()?, &request, &reloader)?;
    let query = Query::read(&request, &["version", "preview"])?;
    let version = query.get("version").unwrap_or_default().to_owned();
    let mut draft = EditDraft::begin(editor, version, query.boolean("preview")?).await?;
    draft.changes.push(ServerChange::Remove { name: path_name(&request) });
    draft.finish(&trials).await
}

/// An edit that was not made yet.
struct EditDraft<'a> {
    editor: Editor<'a>,
    /// The present file.
    file: ConfigFile,
    /// The version of the file that was shown.
    version: String,
    is_preview: bool,
    changes: ServerChanges,
    unset_variables: BTreeSet<String>,
    notes: Vec<String>,
}

impl<'a> EditDraft<'a> {
    /// Reads the file, and begins an edit without changes.
    async fn begin(editor: Editor<'a>, version: String, is_preview: bool) -> Result<Self, Problem> {
        let file = editor.reloader.read_file().await.map_err(to_problem)?;
        Ok(Self {
            editor,
            file,
            version,
            is_preview,
            changes: ServerChanges::default(),
            unset_variables: BTreeSet::new(),
            notes: Vec::new(),
        })
    }

    /// Disables a server that needs a variable which the gateway lacks, and notes the variable. Variables in
    /// `unchecked_variables` are not checked.
    fn disable_without_variables(&mut self, settings: &mut Settings, unchecked_variables: &BTreeSet<String>) {
        let env = &self.editor.reloader.source().env;
        self.unset_variables.extend(references::disable_without_variables(settings, env, unchecked_variables));
    }

    /// Returns `true` if a change brings in a command or an address that no enabled server of the same name has.
    fn has_new_target(&self) -> bool {
        let (file, ConfigSource { flags, env }) = (&self.file, self.editor.reloader.source());
        let prepare =
            |name: &str, settings: &Settings| edit::server_for_trial(file.path(), name, settings, flags, env).ok();
        self.changes.unmasked.iter().any(|change| {
            let name = change.name();
            let Some(settings) = change.settings().filter(|settings| !is_disabled(settings)) else { return false };
            let old = edit::find_server(file.text(), name).ok().filter(is_enabled);
            let old = old.and_then(|old| prepare(name, &old));
            !prepare(name, settings).zip(old).is_some_and(|(new, old)| has_same_target(&new.config, &old.config))
        })
    }

    /// Makes the edit of the version that was shown, or keeps it until another person consents. A preview only shows what it
    /// would change.
    async fn finish(self, trials: &ServerTrials) -> Result<HttpResponse, Problem> {
        let needs_consent = !self.editor.is_at_machine && self.has_new_target();
        let Self { editor, file, version, is_preview, changes, .. } = self;
        let servers: Vec<String> = changes.unmasked.iter().map(|change| change.name().to_owned()).collect();
        let yaml = changes.to_yaml();
        let with_yaml = |error| to_problem(error).with("yaml", yaml.clone());
        let preview = || editor.reloader.preview_edit(&file, &changes).map_err(with_yaml);
        if !is_preview {
            check_editing_is_on(editor.reloader)?;
        }
        let summary = if is_preview {
            preview()?.0
        } else if needs_consent {
            // Consent is given to a comparison with the old servers, so the file must still have them.
            if file.version() != version {
                return Err(with_yaml(FileError::Changed(file.path().to_owned()).into()));
            }
            let (summary, _) = preview()?;
            trials.request_edit(editor.principal, editor.reloader, changes, version).await?;
            summary
        } else {
            let edited = editor.edit_file(changes, version).await;
            edited.map_err(|problem| problem.with("yaml", yaml.clone()))?
        };
        Ok(json_response(&EditResult {
            summary,
            needs_consent,
            servers,
            yaml,
            unset_variables: self.unset_variables.into_iter().collect(),
            notes: self.notes,
        }))
    }
}
