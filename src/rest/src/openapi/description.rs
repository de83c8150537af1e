//! Derives the OpenAPI document from the handlers and the types of their bodies.
//!
//! Whatever depends only on the kind of an operation (the parameter in its path, and the problems of its credential, parameters
//! and body) is added here.

use countersign_http::problem::MEDIA_TYPE;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::{
    absence, account, audit_export, bundles, changes, decisions, events, events_ws, first_steps, identity_provider,
    keys, nodes, openapi, overview, plans, policy, policy_edits, policy_rules, previews,
    problem_document::ProblemDocument, reload, rules, server_accounts, server_edits, server_trials, servers, sessions,
    webhooks,
};

#[derive(OpenApi)]
#[openapi(
    paths(
        openapi::get,
        absence::get,
        absence::set,
        absence::end,
        account::sign_in,
        account::sign_out,
        account::me,
        changes::list,
        changes::get,
        changes::decide,
        changes::edit,
        changes::undo,
        changes::refresh,
        changes::settle,
        changes::audit,
        audit_export::export,
        bundles::list,
        bundles::get,
        decisions::decide,
        events::stream,
        events_ws::upgrade,
        first_steps::get,
        first_steps::propose_test_change,
        keys::list,
        keys::create,
        keys::revoke,
        nodes::list,
        overview::get,
        plans::get,
        plans::decide,
        policy::test,
        policy_edits::file,
        policy_edits::replace,
        policy_rules::get,
        previews::test,
        identity_provider::options,
        identity_provider::begin,
        identity_provider::finish,
        identity_provider::back_channel_logout,
        reload::active_config,
        reload::status,
        reload::consent,
        rules::list,
        rules::create,
        rules::revoke,
        rules::suggest,
        servers::list,
        servers::get,
        servers::allow,
        servers::accept,
        servers::accept_known_reads,
        servers::revoke,
        server_accounts::connect,
        server_accounts::finish,
        server_accounts::disconnect,
        server_accounts::client_metadata,
        server_edits::file,
        server_edits::add,
        server_edits::replace,
        server_edits::remove,
        server_trials::list,
        server_trials::start,
        server_trials::decide,
        sessions::list,
        webhooks::list,
        webhooks::deliveries,
        webhooks::retry,
        webhooks::test,
    ),
    components(schemas(ProblemDocument))
)]
struct Operations;

/// The problems of operations: status, name and description.
const PROBLEMS: [(&str, &str, &str); 14] = [
    (
        "400",
        "BadRequest",
        "`INVALID_PARAMS` (a query parameter), `PARSE_ERROR` (a body that is not JSON), or `INVALID_REQUEST`",
    ),
    ("401", "Unauthorized", "`UNAUTHORIZED`: the credential is missing, unknown, revoked or expired"),
    (
        "403",
        "Forbidden",
        "`FORBIDDEN`: an agent's key, a token without the scope, a viewer who decides, a reviewer whom the rule does not require, a foreign Origin or Host; \
         `SELF_APPROVAL`, `EDIT_FORBIDDEN`, `SIGN_IN_REQUIRED` (`details` has `maxAge` and `acr`), `POLICY_DENIED`",
    ),
    ("404", "NotFound", "`CHANGE_NOT_FOUND`, or `NOT_FOUND` for other objects"),
    ("408", "BodyTimeout", "`TIMEOUT`: the body did not arrive in time"),
    (
        "409",
        "Conflict",
        "`VERSION_CONFLICT`, `CHANGE_NOT_PENDING`, `CHANGE_STALE`, `CHANGE_EXPIRED`, `ALREADY_VOTED` or `PREVIEW_REQUIRED`, with \
         the current change",
    ),
    ("413", "TooLarge", "`TOO_LARGE`: the body exceeds its limit, usually 64 KiB"),
    ("415", "NotJson", "`INVALID_REQUEST`: the body is not `application/json`"),
    (
        "422",
        "Invalid",
        "`VALIDATION_FAILED`: JSON of another shape or with unknown members, or arguments that the tool's schema refuses; \
         `TOOL_EXECUTION_ERROR`: the tool failed; `COMMENT_REQUIRED`",
    ),
    ("426", "UpgradeRequired", "`INVALID_REQUEST`: not a WebSocket handshake"),
    ("429", "Limited", "`RATE_LIMITED`: too many failed attempts, rules, test changes or trials of servers"),
    ("502", "BadGateway", "`UPSTREAM_UNAVAILABLE`: an authorization server cannot be reached or used"),
    ("503", "Unavailable", "`STORE_UNAVAILABLE`, `OVERLOADED` or `SHUTTING_DOWN`"),
    (
        "504",
        "Late",
        "The request exceeded `transports.http.request_timeout`. It may have been carried out all the same; look before you try \
         again.",
    ),
];

/// Returns the document: what the macros derive, completed.
pub fn document() -> Value {
    let mut document = json!(Operations::openapi());
    document["info"] = json!({
        "title": "Countersign",
        "version": "1",
        "summary": "See the changes that agents propose, and decide on them.",
        "description": "Every request, unless its operation says otherwise, needs the key or the access token of a reviewer, \
            viewer or admin, or a dashboard sign-in (cookie and header together, from the gateway's own Origin), also on \
            loopback. Errors are problem documents (RFC 9457) with a stable `code`. Unknown members of bodies and unknown query parameters are refused.",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["servers"] = json!([{ "url": "/" }]);
    document["security"] = json!([{ "key": [] }, { "token": [] }, { "cookie": [], "secret": [] }]);
    document["components"]["securitySchemes"] = json!({
        "key": {
            "type": "http", "scheme": "bearer", "description": "`countersign keys create --role reviewer --name NAME`",
        },
        "token": {
            "type": "http", "scheme": "bearer",
            "description": "An access token of an issuer in `auth.tokens`, with the scope `changes:decide` or a role of the issuer.",
        },
        "cookie": { "type": "apiKey", "in": "cookie", "name": "countersign_session" },
        "secret": { "type": "apiKey", "in": "header", "name": "X-Countersign-Secret" },
    });
    for (_, name, description) in PROBLEMS {
        let schema = json!({ "$ref": "#/components/schemas/Problem" });
        document["components"]["responses"][name] =
            json!({ "description": description, "content": { MEDIA_TYPE: { "schema": schema } } });
    }
    let responses = &mut document["components"]["responses"];
    responses["Unauthorized"]["headers"] =
        json!({ "WWW-Authenticate": { "schema": { "type": "string", "pattern": "^Bearer" } } });
    responses["Limited"]["headers"] =
        json!({ "Retry-After": { "description": "Seconds.", "schema": { "type": "integer" } } });
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        item.as_object_mut().into_iter().flatten().for_each(|(_, operation)| complete_operation(path, operation));
    }
    tidy(&mut document);
    let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
    for (name, schema) in schemas.iter().filter(|(_, schema)| schema.get("allOf").is_some()) {
        let (properties, required) = flatten_members(&schemas, schema);
        document["components"]["schemas"][name] = json!({
            "type": "object", "description": schema["description"], "properties": properties, "required": required,
        });
    }
    // The flattened types are no longer referenced.
    let text = document.to_string();
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.retain(|name, _| text.contains(&format!("schemas/{name}\"")));
    }
    document
}

/// Returns the properties of a type with flattened members, and the names of the required ones.
fn flatten_members(schemas: &Map<String, Value>, schema: &Value) -> (Map<String, Value>, Vec<Value>) {
    let target = schema["$ref"].as_str().and_then(|path| schemas.get(path.rsplit('/').next()?));
    let schema = target.unwrap_or(schema);
    let mut properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let mut required = schema["required"].as_array().cloned().unwrap_or_default();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let (more, more_required) = flatten_members(schemas, part);
        properties.extend(more);
        required.extend(more_required);
    }
    for alternative in schema["oneOf"].as_array().into_iter().flatten() {
        properties.extend(flatten_members(schemas, alternative).0);
    }
    (properties, required)
}

/// Adds the parameter in the path, and the problems that the credential, the parameters and the body cause.
fn complete_operation(path: &str, operation: &mut Value) {
    let has_body = operation.get("requestBody").is_some();
    let needs_credential = operation.get("security").is_none();
    let name = path.split(['{', '}']).nth(1);
    // The macro names them after modules.
    if let Some(members) = operation.as_object_mut() {
        members.remove("tags");
    }
    for (status, problem, _) in PROBLEMS {
        let is_possible = match status {
            // An unknown query parameter, a foreign Origin or Host, too many connections, or a request that takes too long.
            "400" | "403" | "503" | "504" => true,
            // Each wrong credential is a failed attempt.
            "401" | "429" => needs_credential,
            "404" => name.is_some(),
            "408" | "413" | "415" | "422" => has_body,
            _ => false,
        };
        if is_possible || operation["responses"].get(status).is_some() {
            operation["responses"][status] = json!({ "$ref": format!("#/components/responses/{problem}") });
        }
    }
    if let Some(name) = name {
        let object = path.split('/').nth(2).unwrap_or_default().trim_end_matches('s');
        let mut schema = json!({ "type": "string" });
        if name == "id" {
            schema["pattern"] = "^[A-Za-z0-9_-]{1,64}$".into();
        }
        let description = format!("The {name} of the {object}.");
        let parameter =
            json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema });
        match &mut operation["parameters"] {
            Value::Array(parameters) => parameters.insert(0, parameter),
            none => *none = json!([parameter]),
        }
    }
}

/// Joins the lines of descriptions. Removes the defaults of members, and `null` from the types of optional parameters and of members
/// that responses omit.
fn tidy(value: &mut Value) {
    if let Some(Value::String(text)) = value.get_mut("description") {
        *text = text.replace('\n', " ").replace("[`", "`").replace("`]", "`").replace("`None`", "`null`");
    }
    if let Some(Value::String(text)) = value.get_mut("summary") {
        *text = text.replace('\n', " ").trim_end_matches('.').to_owned();
    }
    if value.get("in").is_some() && value.get("schema").is_some() {
        remove_null(&mut value["schema"]);
    }
    let required = value.get("required").cloned().unwrap_or_default();
    // Request bodies refuse unknown members, and accept `null`.
    if value.get("additionalProperties") != Some(&Value::Bool(false)) {
        for (name, member) in value.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            if !required.as_array().is_some_and(|names| names.iter().any(|required| required == name)) {
                remove_null(member);
            }
            if let Some(member) = member.as_object_mut() {
                member.remove("default");
            }
        }
    }
    match value {
        Value::Object(members) if members.get("oneOf").and_then(Value::as_array).is_some_and(|all| all.len() == 1) => {
            remove_null(value);
            tidy(value);
        }
        Value::Object(members) => members.iter_mut().for_each(|(_, member)| tidy(member)),
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn remove_null(schema: &mut Value) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_mut_slice() {
            schema["type"] = only.take();
        }
    }
    if let Some(Value::Array(schemas)) = schema.get_mut("oneOf") {
        schemas.retain(|schema| schema["type"] != "null");
        if let [only] = schemas.as_mut_slice() {
            *schema = only.take();
        }
    }
}

/// The file that the program serves.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

/// Returns the content of [`FILE`], indented so that its changes can be read.
fn file_content() -> String {
    format!("{:#}\n", document())
}

#[test]
fn openapi_file_matches_the_code() {
    let is_current = std::fs::read_to_string(FILE).is_ok_and(|text| text == file_content());
    assert!(
        is_current,
        "src/rest/openapi.json is outdated; run `cargo test -p countersign-rest write_openapi_file -- --ignored`"
    );
}

#[test]
#[ignore = "writes src/rest/openapi.json"]
fn write_openapi_file() {
    std::fs::write(FILE, file_content()).unwrap();
}
