# deb.cmake - the Debian package: `cmake --build build --target package` makes it in build/.
#
# There is one package with all installed files. dpkg-shlibdeps (packages dpkg-dev and file) finds
# its dependencies from the programs. Installing neither enables nor starts the service, because it
# needs a model first.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tarn)
set(CPACK_PACKAGE_VENDOR "Tarn developers")
set(CPACK_PACKAGE_CONTACT "Tarn developers <tarn@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM inference server that keeps its KV cache")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Tarn serves a language model in Hugging Face layout over an OpenAI-style HTTP
API. The KV cache of prompts stays in memory and on disk and is found again by
any later prompt that begins the same way.
.
This package has the server with its systemd service, tarnctl, the load
generator, benchmarks, the C client library with its headers, and a small
model to try them with.")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Loaded while the server runs (--pool-transport ucx), so dpkg-shlibdeps does not see it.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libucx0)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "bash-completion, curl, redis-server | valkey-server, haproxy")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_STRIP_FILES ON)
# With a DESTDIR, so that install.cmake sees the prefix /usr and puts the configuration into /etc.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(scripts ${CMAKE_CURRENT_SOURCE_DIR}/debian)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${scripts}/conffiles ${scripts}/triggers
  ${scripts}/postinst ${scripts}/prerm ${scripts}/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
