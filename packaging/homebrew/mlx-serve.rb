# A template for a tap; packaging/README.md says how what stands between at signs is filled in.
class MlxServe < Formula
  include Language::Python::Virtualenv

  desc "Local LLM serving daemon on MLX with an OpenAI-compatible endpoint"
  homepage "https://pypi.org/project/mlx-server/"
  url "https://files.pythonhosted.org/packages/source/m/mlx-server/mlx_server-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license "MIT"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@3.13"

  # Wheels, in the versions that were tested together: MLX built from source needs Xcode's Metal compiler.
  def install
    venv = virtualenv_create(libexec, "python3.13", without_pip: false)
    system venv.root/"bin/python", "-m", "pip", "install", "--constraint", "constraints.txt", "."
    bin.install_symlink libexec/"bin/mlx-serve"
  end

  service do
    run [opt_bin/"mlx-serve", "serve", "--log-file", var/"log/mlx-serve.log"]
    keep_alive successful_exit: false
    throttle_interval 30
    process_type :interactive
    environment_variables PATH: std_service_path_env
    log_path var/"log/mlx-serve.log"
    error_log_path var/"log/mlx-serve.log"
  end

  def caveats
    <<~EOS
      Either of these starts it at login; use one, they want the same port:
        brew services start mlx-serve
        mlx-serve service install
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/mlx-serve --version")
    url = "http://127.0.0.1:#{port = free_port}"
    daemon = spawn bin/"mlx-serve", "serve", "--port", port.to_s, "--kv-memory", "32MB"
    begin
      system "curl", "--fail", "--silent", "--retry", "30", "--retry-all-errors", "#{url}/ready"
      question = "What is the capital of France?"
      assert_match "Paris", shell_output("#{bin}/mlx-serve chat --url #{url} --temperature 0 '#{question}'")
    ensure
      Process.kill "TERM", daemon
      Process.wait daemon
    end
  end
end
