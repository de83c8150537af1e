//! The model server's fault for each check: its description for the page of the documentation, and where it is tried.

use countersign_check::Check;

/// The transport and era in which a check applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckTarget {
    pub transport: &'static str,
    pub modern: bool,
}

/// Each check with the fault that it detects.
pub const FAULTS: &[(&str, &str)] = &[
    ("messages/jsonrpc", "responses say `\"jsonrpc\": \"1.0\"`"),
    ("messages/id-integer", "the id 42 comes back as \"42\""),
    ("messages/id-string", "the id \"0042\" comes back as 42"),
    ("messages/id-large", "the id 2^53 - 1 comes back as 2^53"),
    ("messages/one-outcome", "an error also has an empty `result`"),
    ("messages/result-object", "the result is an empty list"),
    ("messages/error-object", "the message of an error is null"),
    ("messages/notification-unanswered", "an unknown notification gets a result"),
    ("messages/concurrent", "eight requests are all answered with the id of the first"),
    ("messages/unknown-members", "an unknown member is an error"),
    ("codes/parse-error", "broken JSON gets -32000"),
    ("codes/invalid-request", "a method that is a number gets -32000"),
    ("codes/method-not-found", "an unknown method gets -31000"),
    ("codes/invalid-params", "a call without a name gets -31000"),
    ("codes/unknown-tool", "an unknown tool gets an empty result"),
    ("codes/internal-error", "an unknown cursor gets -32603"),
    ("codes/reserved", "an unknown cursor gets -32050"),
    ("handshake/version-format", "the version is `2025.11.25`"),
    ("handshake/known-version", "every requested version is answered with 2024-11-05"),
    ("handshake/unknown-version", "every requested version is accepted"),
    ("handshake/server-info", "the name is null"),
    ("handshake/capabilities", "a capability is `true`"),
    ("handshake/capabilities-answer", "resources are declared, but listing their templates is refused"),
    ("handshake/ping", "the result of a ping contains `pong`"),
    ("handshake/initialize-without-params", "`initialize` is served without its parameters"),
    ("handshake/early-request", "a request before `initialize` is never answered"),
    ("handshake/early-server-request", "the server asks for roots right after `initialize`"),
    ("stateless/discover", "a supported version is the number 7"),
    ("stateless/server-info", "results have no `_meta`"),
    ("stateless/unsupported-version", "another version gets -32602"),
    ("stateless/result-type", "results have no `resultType`"),
    ("stateless/envelope", "a request without a version is served"),
    ("stateless/client-capabilities", "a request without the client's capabilities is served"),
    ("stateless/first-message", "nothing is served before `server/discover`"),
    ("stateless/removed-methods", "`ping` is served"),
    ("stateless/caching", "lists have no caching hints"),
    ("tools/list", "an input schema is null"),
    ("tools/pages", "the server refuses its own cursor"),
    ("tools/unique", "two tools are called `echo`"),
    ("tools/names", "a tool is called `write it!`"),
    ("tools/input-schema-root", "a schema has no `type`"),
    ("tools/schemas", "a property has the type `strin`"),
    ("tools/stable", "only every third list has a tool's description"),
    ("tools/bad-cursor", "every cursor gets the first page"),
    ("tools/annotations", "`readOnlyHint` is a string"),
    ("tools/arguments", "a call without required arguments is served"),
    ("tools/content", "a text block has `value` in place of `text`"),
    ("tools/is-error", "`isError` is a string"),
    ("tools/structured", "`structuredContent` lacks a required member"),
    ("lists/resources", "a resource has no name"),
    ("lists/resource-contents", "contents have both `text` and `blob`"),
    ("lists/missing-resource", "a missing resource gets -31000"),
    ("lists/templates", "a template's name is null"),
    ("lists/subscribe", "`resources/unsubscribe` is unknown"),
    ("lists/prompts", "arguments are strings"),
    ("lists/prompt-messages", "a message has the role `system`"),
    ("lists/unknown-prompt", "an unknown prompt gets -31000"),
    ("lists/completion", "101 values are returned"),
    ("utilities/cancel-unknown", "a cancellation is answered with a result"),
    ("utilities/progress-token", "progress carries another token"),
    ("utilities/progress-increases", "two notifications report the progress 1"),
    ("utilities/log-level", "every level is accepted"),
    ("utilities/listen", "a change is announced before the acknowledgment"),
    ("utilities/listen-filter", "prompts are acknowledged although tools were requested"),
    ("utilities/no-requests", "a call asks for roots"),
    ("http/content-type", "responses have the type `text/plain`"),
    ("http/notification-accepted", "a notification gets 200 and a body"),
    ("http/origin", "any origin is served"),
    ("http/get", "GET returns a web page"),
    ("http/session-id", "the id contains spaces"),
    ("http/session-required", "a request without a session gets 401"),
    ("http/session-unknown", "a request with an id that was never issued is served"),
    ("http/session-ended", "the session continues after DELETE"),
    ("http/version-header", "any version is served"),
    ("http/header-mismatch", "another `Mcp-Method` is served"),
    ("http/version-mismatch", "another `MCP-Protocol-Version` is served"),
    ("http/name-mismatch", "another `Mcp-Name` is served"),
    ("http/header-missing", "a request without `Mcp-Method` is served"),
    ("http/no-session", "a session id is issued"),
    ("http/method-status", "an unknown method gets 200"),
    ("http/version-status", "an unknown version gets 200"),
    ("http/event-ids", "all events have the id 0"),
    ("http/resumed-stream", "all later events of the session are replayed"),
    ("http/parse-status", "broken JSON gets 200"),
    ("websocket/subprotocol", "no subprotocol is selected"),
    ("websocket/text-frames", "messages are binary"),
    ("websocket/binary", "a binary message is dropped"),
    ("websocket/origin", "a connection from any origin is upgraded"),
    ("stdio/stdout", "a greeting is written to stdout"),
    ("stdio/many-in-one-write", "only the first line of each read is answered"),
    ("stdio/one-in-many-writes", "each read is treated as a whole message"),
    ("stdio/64-kib", "a line of 64 KiB is dropped"),
    ("stdio/4-mib", "a line of 1 MiB is dropped"),
    ("stdio/empty-line", "an empty line ends the server"),
    ("stdio/crlf", "a line with CR is dropped"),
    ("stdio/end", "the server keeps running after its stdin is closed"),
    ("stdio/exit-code", "the exit code is 3"),
    ("robustness/broken-json", "broken JSON ends the server"),
    ("robustness/invalid-utf-8", "invalid UTF-8 ends the server"),
    ("robustness/wrong-types", "parameters that are a string end the server"),
    ("robustness/depth", "a nesting depth of 1,000 ends the server"),
    ("robustness/numbers", "a number of 26 digits ends the server"),
    ("robustness/surrogates", "half of a surrogate pair ends the server"),
    ("robustness/duplicate-keys", "a second `id` ends the server"),
    ("robustness/arrays", "an empty array ends the server"),
    ("robustness/responses", "a response to no request ends the server"),
    ("robustness/names", "a tool name like that of JavaScript's object prototype ends the server"),
    ("robustness/half-open", "half a request ends the server"),
];

/// Returns the target on which a check is tried. It is HTTP, which is faster, unless the fault would break other checks there:
/// over stdio, each check starts two processes.
pub fn target_of(check: &Check) -> CheckTarget {
    let transport = match check.id {
        "handshake/version-format"
        | "handshake/early-request"
        | "handshake/early-server-request"
        | "stateless/unsupported-version"
        | "stateless/first-message"
        | "utilities/cancel-unknown" => "stdio",
        "robustness/half-open" => "http",
        id if id.starts_with("robustness/") || id.starts_with("stdio/") => "stdio",
        id if id.starts_with("websocket/") => "websocket",
        _ => "http",
    };
    let modern = matches!(
        check.id,
        "codes/reserved"
            | "http/header-mismatch"
            | "http/header-missing"
            | "http/version-mismatch"
            | "http/name-mismatch"
            | "http/version-status"
            | "http/no-session"
            | "http/method-status"
            | "utilities/listen"
            | "utilities/listen-filter"
            | "utilities/no-requests"
    ) || check.id.starts_with("stateless/");
    CheckTarget { transport, modern }
}

/// Returns other checks that a fault breaks, because they depend on it.
pub fn dependants(id: &str) -> &'static [&'static str] {
    match id {
        "handshake/version-format" => &["handshake/known-version"],
        // An ended session is an unknown one.
        "http/session-unknown" => &["http/session-ended"],
        // A large answer arrives in pieces.
        "stdio/one-in-many-writes" => &["stdio/64-kib", "stdio/4-mib"],
        _ => &[],
    }
}
