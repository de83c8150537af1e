// Real servers, and calls of each of their tools.
import { spawn } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';

import { command, packageFile } from './fixture.mjs';
import { environment, eventually, listeningPort, repository, run, stopChild } from './gateway.mjs';

/** The Python of the environment in which `scripts/test` installs the Python servers. */
const python = path.join(repository, 'tests/.cache/venv-servers/bin/python');

const npmServer = (file, ...args) => ({ command, args: [packageFile(`@modelcontextprotocol/${file}`), ...args] });
const calls = (...list) => async peer => {
    const results = [];
    for (const [name, args] of list) results.push([name, await peer.attempt(name, args)]);
    return results;
};

/** Replaces what differs between runs: times, hashes, ids. */
export function withoutVolatile(value) {
    // A blob may be text that contains a time.
    const readable = (key, part) => (key === 'blob' ? Buffer.from(part, 'base64').toString() : part);
    const text = JSON.stringify(value, (key, part) => (part === undefined ? null : readable(key, part)))
        .replace(/\b[0-9a-f]{40}\b/g, 'HASH')
        .replace(/\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b/g, 'UUID')
        .replace(/\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?/g, 'TIME')
        .replace(/\w{3} \w{3} \d\d \d{4} \d\d:\d\d:\d\d GMT[^"\\]*/g, 'TIME')
        .replace(/\b\d{1,2}:\d\d:\d\d( [AP]M)?/g, 'TIME')
        .replace(/for session (undefined|UUID)/g, 'for session ID')
        .replace(/\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b/g, 'DAY');
    return JSON.parse(text);
}

/**
 * The servers by name. `entry(folder)` is the entry of a desktop client, `prepare(folder)` creates the server's files, and
 * `use(peer, folder)` calls its tools. A `peer` has `attempt(tool, args)`, `tools()` and the rest of `peer.mjs`, with the
 * server's own names.
 */
export const SERVERS = {
    everything: {
        entry: () => ({ ...npmServer('server-everything/dist/index.js', 'stdio'), env: { EVERYTHING_MARK: 'seen' } }),
        /** Starts the server over HTTP as `{ url, stop() }`: `streamableHttp` serves `/mcp`, `sse` serves `/sse`. */
        async listen(transport) {
            const { command: node, args } = npmServer('server-everything/dist/index.js', transport);
            const child = spawn(node, args, { env: environment({ PORT: '0', EVERYTHING_MARK: 'seen' }), stdio: 'ignore' });
            const url = `http://127.0.0.1:${await listeningPort(child.pid)}`;
            await eventually('server-everything listens', async () => (await fetch(url)).status > 0);
            return { url, stop: () => stopChild(child) };
        },
        prepare: async () => {},
        async use(peer) {
            const tools = (await peer.tools()).map(tool => tool.name).sort();
            const results = await calls(
                ['echo', { message: 'hello' }],
                ['echo', {}],
                ['get-annotated-message', { messageType: 'error', includeImage: true }],
                ['get-resource-links', { count: 2 }],
                ['get-resource-reference', { resourceType: 'Blob', resourceId: 3 }],
                ['get-structured-content', { location: 'Chicago' }],
                ['get-sum', { a: 2, b: 3.5 }],
                ['get-tiny-image', {}],
                ['gzip-file-as-resource', { name: 'a.gz', data: 'data:text/plain,hello', outputType: 'resource' }],
                ['get-roots-list', {}],
                ['trigger-elicitation-request', {}],
                ['trigger-sampling-request', { prompt: 'Say hi', maxTokens: 20 }],
                ['trigger-url-elicitation', { url: 'https://example.com/a', elicitationId: 'e-1' }],
                ['toggle-simulated-logging', {}],
                ['toggle-simulated-logging', {}]
            )(peer);
            const environment = JSON.parse((await peer.call('get-env', {})).content[0].text);
            const progress = [];
            const slow = await peer.attempt('trigger-long-running-operation', { duration: 2, steps: 4 }, { onprogress: update => progress.push(update) });
            // Only the server of this session can resolve this link.
            const linked = await peer.attempt('gzip-file-as-resource', { name: 'b.gz', data: 'data:text/plain,linked', outputType: 'resourceLink' });
            const uri = linked.content?.find(block => block.type === 'resource_link')?.uri;
            const link = uri && (await peer.readShown(uri));
            // Clients may miss progress that arrives together with the answer.
            progress.length = Math.min(progress.length, 3);
            return { tools, results, environment: { mark: environment.EVERYTHING_MARK, secret: environment.COUNTERSIGN_TEST_SECRET }, progress, slow, linked, link };
        },
        /** Uses everything except tools. */
        async more(peer) {
            return {
                // Resources of this session are removed, because the lists must be the same for everybody.
                resources: (await peer.resources()).map(resource => resource.name).filter(name => !name.endsWith('.gz')),
                templates: (await peer.templates()).map(template => template.name),
                read: (await peer.read('demo://resource/static/document/features.md')).contents[0].text.length,
                prompts: await peer.prompts(),
                prompt: (await peer.prompt('args-prompt', { city: 'Bern' })).messages,
                embedded: (await peer.prompt('resource-prompt', { resourceType: 'Text', resourceId: '2' })).messages.map(message => message.content.type),
                completed: (await peer.completePrompt('completable-prompt', 'department', '')).completion.values,
                narrowed: (await peer.completePrompt('completable-prompt', 'name', '', { department: 'Engineering' })).completion.values
            };
        },
        /** Calls the tool that sends updates of the session's subscriptions. */
        async updates(peer) {
            const stop = await peer.watch('demo://resource/dynamic/text/7');
            await peer.call('toggle-subscriber-updates', {});
            try {
                await eventually('an update of the resource', () => peer.updated.length > 0);
            } finally {
                await peer.call('toggle-subscriber-updates', {});
                await stop();
            }
            return 'updated';
        }
    },
    filesystem: {
        entry: folder => npmServer('server-filesystem/dist/index.js', folder),
        async prepare(folder) {
            await mkdir(path.join(folder, 'inner'));
            await writeFile(path.join(folder, 'a.txt'), 'one\ntwo\nthree\n');
            await writeFile(path.join(folder, 'dot.png'), Buffer.from('89504e470d0a1a0a', 'hex'));
        },
        use: (peer, folder) => calls(
            ['list_allowed_directories', {}],
            ['read_file', { path: `${folder}/a.txt` }],
            ['read_text_file', { path: `${folder}/a.txt`, head: 1 }],
            ['read_media_file', { path: `${folder}/dot.png` }],
            ['read_multiple_files', { paths: [`${folder}/a.txt`, `${folder}/missing`] }],
            ['write_file', { path: `${folder}/b.txt`, content: 'grüezi\n' }],
            ['edit_file', { path: `${folder}/b.txt`, edits: [{ oldText: 'grüezi', newText: 'hallo' }] }],
            ['create_directory', { path: `${folder}/inner/deep` }],
            ['move_file', { source: `${folder}/b.txt`, destination: `${folder}/inner/b.txt` }],
            ['list_directory', { path: folder }],
            ['list_directory_with_sizes', { path: folder }],
            ['directory_tree', { path: folder }],
            ['search_files', { path: folder, pattern: '**/*.txt' }],
            ['get_file_info', { path: `${folder}/a.txt` }],
            ['read_file', { path: '/etc/hostname' }]
        )(peer)
    },
    memory: {
        entry: folder => ({ ...npmServer('server-memory/dist/index.js'), env: { MEMORY_FILE_PATH: path.join(folder, 'memory.jsonl') } }),
        prepare: async () => {},
        use: calls(
            ['create_entities', { entities: ['Ada', 'Bob'].map(name => ({ name, entityType: 'person', observations: [`${name} exists`] })) }],
            ['create_relations', { relations: [{ from: 'Ada', to: 'Bob', relationType: 'knows' }] }],
            ['add_observations', { observations: [{ entityName: 'Ada', contents: ['likes engines'] }] }],
            ['read_graph', {}],
            ['search_nodes', { query: 'engines' }],
            ['open_nodes', { names: ['Bob'] }],
            ['delete_observations', { deletions: [{ entityName: 'Ada', observations: ['likes engines'] }] }],
            ['delete_relations', { relations: [{ from: 'Ada', to: 'Bob', relationType: 'knows' }] }],
            ['delete_entities', { entityNames: ['Bob'] }],
            ['read_graph', {}],
            ['open_nodes', { names: 'not a list' }]
        )
    },
    git: {
        entry: folder => ({ command: python, args: ['-m', 'mcp_server_git', '--repository', folder] }),
        async prepare(folder) {
            const git = (...args) => run('git', ['-C', folder, '-c', 'user.name=Ada', '-c', 'user.email=ada@example.com', ...args]);
            await git('init', '-q', '-b', 'main');
            await git('config', 'user.name', 'Ada');
            await git('config', 'user.email', 'ada@example.com');
            await writeFile(path.join(folder, 'a.txt'), 'one\n');
            await git('add', 'a.txt');
            await git('commit', '-q', '-m', 'First');
            await writeFile(path.join(folder, 'a.txt'), 'two\n');
        },
        use: (peer, folder) => calls(
            ['git_status', { repo_path: folder }],
            ['git_diff_unstaged', { repo_path: folder }],
            ['git_add', { repo_path: folder, files: ['a.txt'] }],
            ['git_diff_staged', { repo_path: folder }],
            ['git_reset', { repo_path: folder }],
            ['git_add', { repo_path: folder, files: ['a.txt'] }],
            ['git_commit', { repo_path: folder, message: 'Second' }],
            ['git_log', { repo_path: folder, max_count: 5 }],
            ['git_create_branch', { repo_path: folder, branch_name: 'side' }],
            ['git_checkout', { repo_path: folder, branch_name: 'side' }],
            ['git_branch', { repo_path: folder, branch_type: 'local' }],
            ['git_diff', { repo_path: folder, target: 'main' }],
            ['git_show', { repo_path: folder, revision: 'HEAD' }],
            ['git_status', { repo_path: '/nowhere' }]
        )(peer)
    },
    time: {
        entry: () => ({ command: python, args: ['-m', 'mcp_server_time', '--local-timezone', 'Europe/Zurich'] }),
        prepare: async () => {},
        use: calls(
            ['get_current_time', { timezone: 'Asia/Tokyo' }],
            ['convert_time', { source_timezone: 'UTC', time: '12:30', target_timezone: 'Asia/Kolkata' }],
            ['convert_time', { source_timezone: 'Nowhere/None', time: '12:30', target_timezone: 'UTC' }]
        )
    }
};

/** Creates the folder of a server again. */
export async function prepare(name, folder) {
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true });
    await SERVERS[name].prepare(folder);
}
