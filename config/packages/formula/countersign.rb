# Homebrew formula. scripts/packages/tarball fills in the address and the checksum; Homebrew reads the version from the address.
class Countersign < Formula
  desc "MCP gateway that puts a person between AI agents and every write"
  homepage "https://github.com/countersign/countersign"
  url "@URL@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on arch: :x86_64
  depends_on :linux

  def install
    bin.install "countersign"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/countersign.bash" => "countersign"
    zsh_completion.install "completions/_countersign"
    fish_completion.install "completions/countersign.fish"
  end

  service do
    run [opt_bin/"countersign", "serve"]
    keep_alive successful_exit: false
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/countersign --version")
  end
end
