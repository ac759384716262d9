{
  # For users of node-gyp: the same library from the same CMakeLists.txt.
  "targets": [
    {
      "target_name": "privsep",
      "type": "none",
      "actions": [
        {
          "action_name": "cmake_js",
          "inputs": ["native/CMakeLists.txt"],
          "outputs": ["<(module_root_dir)/build/Release/privsep.node"],
          "action": ["npx", "--no-install", "cmake-js", "build", "-d", "native", "-O", "<(module_root_dir)/build"]
        }
      ]
    }
  ]
}
