# A formula for a tap: brew tap OWNER/tap, then brew install omlx-server and
# brew services start omlx-server. `packaging/homebrew/release` writes the checksum of a release.
class OmlxServer < Formula
  desc "OpenAI-compatible LLM server on MLX"
  homepage "https://pypi.org/project/omlx-server/"
  url "https://files.pythonhosted.org/packages/source/o/omlx-server/omlx_server-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on :macos
  depends_on "python@3.13"

  # MLX comes as wheels, whose libraries must stay as they were signed.
  skip_clean "libexec"

  def install
    system "python3.13", "-m", "venv", libexec
    system libexec/"bin/python", "-m", "pip", "install", "--no-compile",
           "--constraint", "config/constraints.txt", buildpath
    bin.install_symlink libexec/"bin/omlx-server"
  end

  service do
    run [opt_bin/"omlx-server", "serve", "--degraded-on-error",
         "--set", "logging.file=#{var}/log/omlx-server.log"]
    keep_alive successful_exit: false
    throttle_interval 10
    process_type :interactive
    log_path var/"log/omlx-server.launchd.log"
    error_log_path var/"log/omlx-server.launchd.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/omlx-server --version")
    assert_match "SECTION.KEY", shell_output("#{bin}/omlx-server serve --help")
  end
end
