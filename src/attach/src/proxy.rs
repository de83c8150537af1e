//! Carries bytes between an agent and the gateway. Towards stdout only whole lines go, so that a gateway that dies
//! in mid-message leaves no half of one.

use std::{future::Future, io, time::Duration};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// How long finished answers may take to arrive and be written once stdin has ended: a client that is gone is owed
/// an end within a second.
pub const GRACE: Duration = Duration::from_millis(700);

/// The longest line from the gateway. Far above any limit on messages: what is longer is a fault.
const MAX_LINE: u64 = 256 << 20;

/// How a connection came to its end.
#[derive(Debug)]
pub enum Ended {
    /// stdin ended, or we were told to end; finished answers are written.
    Done,
    /// Whoever read stdout is gone.
    OutputClosed,
    /// The gateway closed while the agent was still there.
    GatewayGone,
    /// Reading stdin or writing stdout failed otherwise.
    Failed(io::Error),
}

/// Carries lines until one side ends or `terminate` is ready.
///
/// On the end of stdin, and on `terminate`, the gateway sees the end of its input, and what it still sends within
/// [`GRACE`] is written.
pub async fn run<I, O, R, W>(
    input: I,
    output: O,
    gateway_read: R,
    gateway_write: W,
    terminate: impl Future<Output = ()>,
) -> Ended
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let download = download(gateway_read, output);
    tokio::pin!(download);
    let mut upload = Box::pin(upload(input, gateway_write));
    tokio::pin!(terminate);
    let writer = tokio::select! {
        ended = &mut download => return ended,
        (writer, result) = &mut upload => match result {
            Ok(()) => Some(writer),
            Err(Upload::Input(error)) => return Ended::Failed(error),
            // The gateway does not read any more; what it has said is still ours to pass on.
            Err(Upload::Gateway) => {
                return match timeout(GRACE, &mut download).await {
                    Ok(ended) => ended,
                    Err(_) => Ended::GatewayGone,
                };
            }
        },
        () = &mut terminate => None,
    };
    match writer {
        Some(mut writer) => {
            let _ = writer.shutdown().await;
            match timeout(GRACE, download).await {
                Ok(Ended::Failed(error)) => Ended::Failed(error),
                Ok(Ended::OutputClosed) => Ended::OutputClosed,
                // The gateway closes when it has answered; an answer that is still being made is abandoned.
                Ok(Ended::Done | Ended::GatewayGone) | Err(_) => Ended::Done,
            }
        }
        // Told to end: the agent may go on writing, but nobody listens any more.
        // Dropping the writer's half ends the gateway's input.
        None => {
            drop(upload);
            let _ = timeout(GRACE, download).await;
            Ended::Done
        }
    }
}

enum Upload {
    Input(io::Error),
    Gateway,
}

async fn upload<I, W>(mut input: I, mut gateway: W) -> (W, Result<(), Upload>)
where
    I: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; 64 << 10];
    let result = loop {
        match input.read(&mut buffer).await {
            Ok(0) => break Ok(()),
            Ok(count) => {
                let sent = gateway.write_all(buffer.get(..count).unwrap_or_default()).await;
                if sent.is_err() {
                    break Err(Upload::Gateway);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(Upload::Input(error)),
        }
    };
    (gateway, result)
}

async fn download<R, O>(mut gateway: R, mut output: O) -> Ended
where
    R: AsyncBufRead + Unpin,
    O: AsyncWrite + Unpin,
{
    let mut line = Vec::new();
    loop {
        line.clear();
        // Large lines must not keep their memory for the life of the session.
        line.shrink_to(1 << 20);
        let read = (&mut gateway).take(MAX_LINE).read_until(b'\n', &mut line).await;
        if read.is_err() || line.last() != Some(&b'\n') {
            return Ended::GatewayGone;
        }
        let written = async {
            output.write_all(&line).await?;
            output.flush().await
        };
        match written.await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ended::OutputClosed,
            Err(error) => return Ended::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{BufReader, DuplexStream, duplex, split};

    use super::*;

    /// A gateway that answers each line with itself, and closes at the end of its input.
    async fn echo(gateway: DuplexStream) {
        let (read, mut write) = split(gateway);
        let mut read = BufReader::new(read);
        let mut line = Vec::new();
        while read.read_until(b'\n', &mut line).await.unwrap() > 0 {
            write.write_all(&line).await.unwrap();
            line.clear();
        }
        write.shutdown().await.unwrap();
    }

    async fn through(input: &[u8]) -> (Ended, Vec<u8>) {
        let (near, far) = duplex(4096);
        let (read, write) = split(near);
        let mut output = Vec::new();
        let (ended, ()) = tokio::join!(run(input, &mut output, BufReader::new(read), write, pending()), echo(far));
        (ended, output)
    }

    #[tokio::test]
    async fn lines_of_all_sizes_pass_and_the_end_is_clean() {
        for size in [0, 1, 64 << 10, 8 << 20] {
            let mut input = Vec::new();
            for _ in 0..3 {
                input.extend(std::iter::repeat_n(b'x', size));
                input.push(b'\n');
            }
            let (ended, output) = through(&input).await;
            assert!(matches!(ended, Ended::Done), "{ended:?}");
            assert!(output == input, "{} of {} bytes", output.len(), input.len());
        }
    }

    #[tokio::test]
    async fn half_a_line_never_reaches_stdout() {
        let (near, mut far) = duplex(4096);
        let (read, write) = split(near);
        let mut output = Vec::new();
        far.write_all(b"{\"whole\":1}\n{\"ha").await.unwrap();
        drop(far);
        let (input, _open) = duplex(64);
        let ended = run(input, &mut output, BufReader::new(read), write, pending()).await;
        assert!(matches!(ended, Ended::GatewayGone), "{ended:?}");
        assert_eq!(output, b"{\"whole\":1}\n");
    }

    #[tokio::test]
    async fn told_to_end_it_ends_the_gateways_input() {
        let (near, mut far) = duplex(4096);
        let (read, write) = split(near);
        let mut output = Vec::new();
        far.write_all(b"answer\n").await.unwrap();
        let (input, _open) = duplex(64);
        let told = async {};
        let ended = run(input, &mut output, BufReader::new(read), write, told).await;
        assert!(matches!(ended, Ended::Done), "{ended:?}");
        assert_eq!(output, b"answer\n", "what was finished is flushed");
        let mut rest = Vec::new();
        assert_eq!(far.read_to_end(&mut rest).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_ends_it_quietly() {
        let (near, mut far) = duplex(4096);
        let (read, write) = split(near);
        far.write_all(b"answer\n").await.unwrap();
        let (output, gone) = duplex(1);
        drop(gone);
        let (input, _open) = duplex(64);
        let ended = run(input, output, BufReader::new(read), write, pending()).await;
        assert!(matches!(ended, Ended::OutputClosed), "{ended:?}");
    }
}
