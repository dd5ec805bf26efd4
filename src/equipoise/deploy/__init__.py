"""Real hospitals: keys, a site's folder and policy, the coordinator's run, and the processes they are."""
