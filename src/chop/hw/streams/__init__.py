"""Components that every design needs: queues, forks, gearboxes, casts, reordering."""
