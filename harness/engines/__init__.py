"""The engines that people serve with: started, stopped, stood in for, and compared."""
