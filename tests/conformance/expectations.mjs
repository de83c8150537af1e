// The scenarios of the official suite that the gateway must pass alone, and why the others prove nothing about it. Together
// they are exactly those of `--requirements REVISION`: `run.mjs` rejects an incomplete list.

const tool = name => `the fixture tool ${name}`;
const mrtr = tool('test_input_required_result_*');
const tasks = 'the tasks extension of a fixture server';

/** Scenarios that must pass with all checks except those in `untestable`. */
export const required = {
    '2025-11-25': [
        'server-initialize',
        'server-session-lifecycle',
        'logging-set-level',
        'ping',
        'completion-complete',
        'tools-list',
        'server-sse-multiple-streams',
        'resources-list',
        'resources-subscribe',
        'resources-unsubscribe',
        'prompts-list',
        'dns-rebinding-protection'
    ],
    '2026-07-28': [
        'server-stateless',
        'completion-complete',
        'tools-list',
        'server-sse-multiple-streams',
        'resources-list',
        'sep-2164-resource-not-found',
        'prompts-list',
        'dns-rebinding-protection',
        'caching',
        'http-header-validation',
        'input-required-result-unsupported-methods'
    ]
};

/** Checks of required scenarios that need a fixture tool. */
export const untestable = {
    'server-stateless': {
        'sep-2575-server-rejects-undeclared-capability': tool('test_missing_capability'),
        'sep-2575-missing-capability-http-400': tool('test_missing_capability'),
        'sep-2575-http-server-no-independent-requests-on-stream': tool('test_streaming_elicitation'),
        'sep-2575-server-no-log-without-loglevel': tool('test_logging_tool')
    }
};

/** Scenarios that are not judged, with what each needs beside the gateway. */
export const needsFixture = {
    'tools-call-simple-text': tool('test_simple_text'),
    'tools-call-image': tool('test_image_content'),
    'tools-call-audio': tool('test_audio_content'),
    'tools-call-embedded-resource': tool('test_embedded_resource'),
    'tools-call-mixed-content': tool('test_multiple_content_types'),
    'tools-call-with-logging': tool('test_tool_with_logging'),
    'tools-call-error': tool('test_error_handling'),
    'tools-call-with-progress': tool('test_tool_with_progress'),
    'tools-call-sampling': tool('test_sampling'),
    'tools-call-elicitation': tool('test_elicitation'),
    'elicitation-sep1034-defaults': tool('test_elicitation_sep1034_defaults'),
    'elicitation-sep1330-enums': tool('test_elicitation_sep1330_enums'),
    'json-schema-2020-12': tool('json_schema_2020_12_tool'),
    'server-sse-polling': tool('test_reconnection'),
    'http-custom-header-server-validation': 'a fixture tool with x-mcp-header',
    'resources-read-text': 'the fixture resource test://static-text',
    'resources-read-binary': 'the fixture resource test://static-binary',
    'resources-templates-read': 'the fixture template test://template/{id}/data',
    'prompts-get-simple': 'the fixture prompt test_simple_prompt',
    'prompts-get-with-args': 'the fixture prompt test_prompt_with_arguments',
    'prompts-get-embedded-resource': 'the fixture prompt test_prompt_with_embedded_resource',
    'prompts-get-with-image': 'the fixture prompt test_prompt_with_image',
    'input-required-result-basic-elicitation': mrtr,
    'input-required-result-basic-sampling': mrtr,
    'input-required-result-basic-list-roots': mrtr,
    'input-required-result-request-state': mrtr,
    'input-required-result-multiple-input-requests': mrtr,
    'input-required-result-multi-round': mrtr,
    'input-required-result-missing-input-response': `${mrtr}; it only warns, even against a closed port`,
    'input-required-result-non-tool-request': mrtr,
    'input-required-result-result-type': mrtr,
    'input-required-result-tampered-state': mrtr,
    'input-required-result-capability-check': mrtr,
    'input-required-result-ignore-extra-params': `${mrtr}; it only warns, even against a closed port`,
    'input-required-result-validate-input': mrtr,
    'tasks-lifecycle': tasks,
    'tasks-capability-negotiation': tasks,
    'tasks-wire-fields': tasks,
    'tasks-request-state-removal': tasks,
    'tasks-mrtr-input': tasks,
    'tasks-request-headers': tasks,
    'tasks-dispatch-and-envelope': tasks,
    'tasks-status-notifications': tasks,
    'tasks-required-task-error': tasks,
    'tasks-mrtr-composition': tasks
};

/** The scenarios of the tasks extension. The suite skips `tasks-status-notifications`, so it is excluded. */
export const TASKS = Object.keys(needsFixture).filter(name => needsFixture[name] === tasks && name !== 'tasks-status-notifications');

/** The client scenarios that the gateway must pass with its upstream side, without those of authorization. */
export const UPSTREAM_SIDE = {
    '2025-11-25': ['initialize', 'tools_call', 'elicitation-sep1034-client-defaults', 'sse-retry'],
    '2026-07-28': [
        'tools_call',
        'request-metadata',
        'sep-2322-client-request-state',
        'http-standard-headers',
        'http-custom-headers',
        'http-invalid-tool-headers',
        'json-schema-ref-no-deref'
    ]
};

/** The client scenarios of authorization that no list of requirements has: of an old revision, and of extensions. */
export const MORE_AUTHORIZATION = {
    '2025-03-26': ['auth/2025-03-26-oauth-metadata-backcompat', 'auth/2025-03-26-oauth-endpoint-fallback'],
    extensions: [
        'auth/client-credentials-basic',
        'auth/client-credentials-jwt',
        'auth/enterprise-managed-authorization',
        'auth/dpop',
        'auth/dpop-nonce',
        'auth/wif-jwt-bearer'
    ]
};

/** Scenarios that only warn, so that they pass against a closed port too. */
export const warnOnly = ['input-required-result-missing-input-response', 'input-required-result-ignore-extra-params'];
